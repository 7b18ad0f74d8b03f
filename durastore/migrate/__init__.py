"""A tree from one disk to another: copied, read back, proven; freed at its source only when told."""
