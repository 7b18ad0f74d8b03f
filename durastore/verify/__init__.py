"""How a remote copy comes to be known, and the only place where a receipt is made.

Duty: look at the bucket, return `Evidence`; look at both sides, return a `Receipt`. Must never delete, here or there.
"""
