"""The local side: packs, journal, locks and recovery of one spool root.

Duty: keep every acknowledged sample on this disk until someone else proves it is elsewhere. Must never unlink data.
"""
