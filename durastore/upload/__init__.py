"""Sending packs to the bucket. Nothing in here is evidence that they arrived: that is `durastore.verify`."""
