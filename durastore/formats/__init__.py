"""Versioned layouts: pack, object keys, manifest segment, journal schema, bucket marker (`docs/format/`)."""
