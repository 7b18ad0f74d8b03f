"""Which lies the server tells, and when.

Duty: the names of all lies, one rule as a value (with its JSON form), and the book that counts requests against
rules. Must never tell a lie itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import Enum
from typing import Any

from durastore.errors import InvalidInput
from durastore.testing.strict_s3.operations import OPERATIONS

__all__ = ["PROFILES", "Lie", "Rule", "RuleBook", "parse_rules", "render_rules"]

_WRITES = ("put", "complete_upload", "copy")
_BODIES = ("put", "upload_part", "complete_upload")
_READS = ("get", "head")
_LISTS = ("list", "list_v1", "list_versions")


class Lie(Enum):
    """Every lie, and every failure, the server can be told to act out: its name, and the operations it is told in."""

    # --- connections and whole requests ---
    DROP_REQUEST = "drop-request", ("*",)
    CUT_REQUEST = "cut-request", ("put", "upload_part")
    DROP_RESPONSE = "drop-response", ("*",)
    HANG = "hang", ("*",)
    DELAY = "delay", ("*",)
    THROTTLE = "throttle", ("*",)
    SLOW_DOWN = "slow-down", ("*",)
    RATE_LIMIT = "rate-limit", ("*",)
    ERROR = "error", ("*",)
    ERROR_AFTER = "error-after", ("*",)
    HTML_200 = "html-200", ("*",)
    REDIRECT = "redirect", ("*",)
    INCOMPLETE_BODY = "incomplete-body", ("put", "upload_part")
    EXPIRED_TOKEN = "expired-token", ("*",)
    CLOCK_SKEW = "clock-skew", ("*",)
    NO_DATE = "no-date", ("*",)
    FORBIDDEN = "forbidden", ("*",)
    FORBIDDEN_HEAD = "403-head", ("head",)
    ABSENT_IS_403 = "absent-is-403", _READS
    WRONG_OWNER = "wrong-owner", ("*",)
    VOLATILE = "volatile", ("*",)
    RECREATED_BUCKET = "recreated-bucket", ("*",)
    # --- what is checked ---
    IGNORE_CHECKSUM = "ignore-checksum", _BODIES
    ECHO_CHECKSUM = "echo-checksum", _BODIES
    IGNORE_MD5 = "ignore-md5", ("put", "upload_part")
    IGNORE_SIZE = "ignore-size", ("complete_upload",)
    IGNORE_CONDITIONS = "ignore-conditions", ("put", "complete_upload", "get", "head")
    REFUSE_CONDITIONS = "refuse-conditions", ("put", "complete_upload")
    IGNORE_OWNER = "ignore-owner", ("*",)
    ACCEPT_SHORT_BODY = "accept-short-body", ("put", "upload_part")
    REJECT_CHECKSUM_HEADERS = "reject-checksum-headers", ("put", "create_upload", "upload_part", "complete_upload")
    REFUSE_AWS_CHUNKED = "refuse-aws-chunked", ("put", "upload_part")
    STORES_AWS_CHUNKED_RAW = "stores-aws-chunked-raw", ("put", "upload_part")
    EQUAL_PARTS = "equal-parts", ("complete_upload",)
    SMALL_PARTS = "small-parts", ("complete_upload",)
    REFUSE_ODD_KEYS = "refuse-odd-keys", ("put", "create_upload")
    PLUS_IS_SPACE = "plus-is-space", ("*",)
    NFC_KEYS = "nfc-keys", ("*",)
    # --- what is stored ---
    STORE_EMPTY = "store-empty", _WRITES
    STORE_SHORT = "store-short", _WRITES
    ZERO_BLOCK = "zero-block", _WRITES
    FLIP_BYTE = "flip-byte", _WRITES
    SPLICE = "splice", _WRITES
    LOSE = "lose", _WRITES
    LOSE_AFTER_HEAD_OK = "lose-after-head-ok", _WRITES
    LOSE_PART_AFTER_HEAD = "lose-part-after-head", _WRITES
    HOLLOW = "hollow", _WRITES
    DELETE_MARKER = "delete-marker", _WRITES
    DROP_METADATA = "drop-metadata", ("put", "create_upload", "copy")
    ARCHIVE_CLASS = "archive-class", ("put", "create_upload", "copy")
    ETAG_NOT_MD5 = "etag-not-md5", ("put", "upload_part", "complete_upload", "copy")
    FORGET_PART = "forget-part", ("complete_upload",)
    ZERO_PART = "zero-part", ("complete_upload",)
    LEAK_PARTS = "leak-parts", ("upload_part", "list_parts", "list_uploads", "abort_upload")
    LOSE_UPLOAD = "lose-upload", ("upload_part", "complete_upload", "list_parts")
    COPY_LOSES_RANGE = "copy-loses-range", ("copy_part",)
    # --- what is answered ---
    COMPLETE_200_ERROR = "complete-200-error", ("complete_upload",)
    COMPLETE_200_EMPTY = "complete-200-empty", ("complete_upload",)
    COMPLETE_200_ODD = "complete-200-odd", ("complete_upload",)
    STALE_HEAD = "stale-head", ("head",)
    LAGGING_REPLICA = "lagging-replica", _READS
    HEAD_WITHOUT_LENGTH = "head-without-length", ("head",)
    HIDE_CHECKSUM = "hide-checksum", ("put", "upload_part", "complete_upload", "head", "get")
    WRONG_CHECKSUM = "wrong-checksum", ("head", "get")
    WRONG_ETAG = "wrong-etag", _READS
    TRUNCATE_BODY = "truncate-body", ("get",)
    SHORT_BODY = "short-body", ("get",)
    IGNORE_RANGE = "ignore-range", ("get",)
    WRONG_RANGE = "wrong-range", ("get",)
    GZIP = "gzip", ("get",)
    GZIP_ALWAYS = "gzip-always", ("get",)
    LIST_EMPTY = "list-empty", _LISTS
    LIST_OMITS = "list-omits", _LISTS
    LIST_REPEATS = "list-repeats", ("list", "list_v1")
    LIST_SHORT = "list-short", _LISTS
    LIST_UNORDERED = "list-unordered", ("list", "list_v1")
    LIST_NO_TOKEN = "list-no-token", ("list", "list_v1")
    LIST_UNENCODED = "list-unencoded", ("list", "list_v1")
    V2_BROKEN = "v2-broken", ("list",)
    PAGE_SIZE = "page-size", ("list", "list_v1", "list_versions", "list_parts", "list_uploads")
    LIFECYCLE_RULE = "lifecycle-rule", ("get_lifecycle", "head", "get", "put")

    def __init__(self, label: str, ops: tuple[str, ...]) -> None:
        self.label = label
        self.ops = ops

    @classmethod
    def named(cls, label: str) -> Lie:
        """The lie of that name; `InvalidInput` where there is none."""
        found = _BY_LABEL.get(label)
        if found is None:
            raise InvalidInput(f"no lie is called {ascii(label)[:60]}")
        return found


_BY_LABEL = {lie.label: lie for lie in Lie}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Tell `lie` in its requests number `first` to `first + count - 1`, counted over those the rule speaks of.

    `op` chooses the operation and `key_part` the keys. `amount` and `text` mean
    what the lie's row in the table of docs/testing-kit.md says. `InvalidInput` for a rule that could never be due: the
    test that rests on it would pass for nothing.
    """

    lie: Lie
    op: str = ""
    first: int = 1
    count: int | None = None
    """None: for ever."""
    key_part: str = ""
    amount: float | None = None
    text: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.lie, Lie):
            raise InvalidInput(f"{ascii(self.lie)[:60]} is no lie", hint="give one of `Lie`")
        if self.op not in ("", "*", *OPERATIONS):
            near = get_close_matches(str(self.op), OPERATIONS, n=3)
            hint = f"did you mean {' or '.join(near)}?" if near else f"one of {' '.join(OPERATIONS)}"
            raise InvalidInput(f"no operation is called {ascii(self.op)[:60]}", hint=hint)
        if self.op not in ("", "*") and "*" not in self.lie.ops and self.op not in self.lie.ops:
            told = " ".join(self.lie.ops)
            raise InvalidInput(f"{self.lie.label} is never told in {self.op}", hint=f"it is told in {told}")
        if self.first < 1 or (self.count is not None and self.count < 1):
            raise InvalidInput(f"first {self.first}, count {self.count}: no request is due", hint="both from 1")

    def speaks_of(self, op: str, key: str) -> bool:
        if self.key_part and self.key_part not in key:
            return False
        if self.op not in ("", "*"):
            return self.op == op
        return self.op == "*" or op in self.lie.ops or "*" in self.lie.ops

    def is_due(self, number: int) -> bool:
        return number >= self.first and (self.count is None or number < self.first + self.count)


_NO_CREATE_ONLY = tuple(Rule(lie=Lie.IGNORE_CONDITIONS, op=op) for op in ("put", "complete_upload"))
PROFILES: Mapping[str, tuple[Rule, ...]] = {
    "honest": (),
    "md5-only": (Rule(lie=Lie.IGNORE_CHECKSUM), *_NO_CREATE_ONLY),
    "echo": (Rule(lie=Lie.ECHO_CHECKSUM), Rule(lie=Lie.ETAG_NOT_MD5, op="complete_upload"), *_NO_CREATE_ONLY),
    "checks-nothing": (Rule(lie=Lie.IGNORE_CHECKSUM), Rule(lie=Lie.IGNORE_MD5), Rule(lie=Lie.IGNORE_SIZE)),
}
"""Servers as they are: rules that belong together, by what can be relied on."""


def render_rules(rules: Iterable[Rule]) -> list[dict[str, Any]]:
    """The JSON form: `[{"lie": "flip-byte", "key_part": "packs/"}]`; fields at their default may be left out."""
    return [
        {field.name: rule.lie.label if field.name == "lie" else getattr(rule, field.name) for field in fields(Rule)}
        for rule in rules
    ]


def parse_rules(text: str | bytes) -> tuple[Rule, ...]:
    """Inverse of `render_rules`; `InvalidInput` on anything else."""
    try:
        given = json.loads(text or "[]")
        return tuple(Rule(**{**row, "lie": Lie.named(row["lie"])}) for row in given)
    except KeyError as exc:
        raise InvalidInput(f"not a script of rules: a rule has no {exc}") from exc
    except (ValueError, TypeError) as exc:
        raise InvalidInput(f"not a script of rules: {exc}") from exc


class RuleBook:
    """The rules in force, each with its own count. Thread-safe."""

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self._lock = threading.Lock()
        self._entries: list[tuple[Rule, list[int]]] = []
        self.write(rules)

    def write(self, rules: Iterable[Rule]) -> None:
        """Put `rules` in the place of all earlier ones; counting starts anew."""
        entries = [(rule, [0]) for rule in rules]
        with self._lock:
            self._entries = entries

    def due(self, op: str, key: str) -> dict[Lie, Rule]:
        """Count a request and return what is due in it; of two rules for one lie the earlier."""
        found: dict[Lie, Rule] = {}
        if not self._entries:
            return found
        with self._lock:
            for rule, seen in self._entries:
                if rule.speaks_of(op, key):
                    seen[0] += 1
                    if rule.is_due(seen[0]):
                        found.setdefault(rule.lie, rule)
        return found
