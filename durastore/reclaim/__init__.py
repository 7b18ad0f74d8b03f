"""Verified delete of a local file: the one door through which data leaves a disk."""
