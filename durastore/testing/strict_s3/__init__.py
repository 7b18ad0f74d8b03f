"""A strict S3 server for tests, in a process of its own: correct by default, and lying exactly as it is told.

Duty: stand where a real endpoint stands, check all that S3 checks, and act out, one named rule each, every way in
which endpoints have been seen to lose, damage or misreport objects. Loopback only; everything is held in memory.
"""

from durastore.testing.strict_s3.client import StrictS3
from durastore.testing.strict_s3.rules import PROFILES, Lie, Rule, parse_rules, render_rules
from durastore.testing.strict_s3.seen import SeenRequest

__all__ = ["PROFILES", "Lie", "Rule", "SeenRequest", "StrictS3", "parse_rules", "render_rules"]
