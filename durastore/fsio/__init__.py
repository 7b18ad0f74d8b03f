"""Durable file primitives: what is written here is on disk when the call returns, or the call raised.

Duty: held folders, publish, append, relocate, identity, locks, space. Knows nothing of samples, packs or buckets.
"""
