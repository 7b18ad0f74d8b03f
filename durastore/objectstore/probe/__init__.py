"""What an endpoint really checks, found out by sending it lies, before a local byte may go on its word.

Duty: send wrong checksums, sizes and conditions under keys of its own, see which are refused, and choose from that the
evidence each write path can give. Must never ask what the endpoint is called, and never take an object away.
"""
