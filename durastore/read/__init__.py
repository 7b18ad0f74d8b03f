"""Fetch, decode and check samples: shared by the store and the dataset reader."""
