"""Compare bucket and manifest: findings, plans, and the rebuild of a manifest from the packs alone."""
