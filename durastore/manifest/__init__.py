"""The bucket's own list of what the dataset holds: publish segments, pin a snapshot, resolve it to one view."""
