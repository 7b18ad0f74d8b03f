"""The lies of the loss table, and the three times at which each is told.

Duty: pure values. `start`: of packs and of the probe's own objects, from before the store opens. `after`: of every
object, from the moment the probe has passed, so that an endpoint known to guard its objects turns. `some`: after the
probe, of a few packs only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum

from durastore.testing.strict_s3 import PROFILES, Lie, Rule

__all__ = ["SAMPLED", "SCENES", "Scene", "When"]

PACKS = "/packs/"
PROBE = ".durastore-probe/"
SMALL_PARTS = Rule(lie=Lie.SMALL_PARTS)  # parts below 5 MiB are what makes a dozen multipart uploads cheap enough


class When(Enum):
    START = "start"
    AFTER = "after"
    SOME = "some"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One row of the table."""

    name: str
    when: When
    rules: tuple[Rule, ...]

    def __str__(self) -> str:
        return f"{self.name} ({self.when.value})"

    @property
    def is_taken_away_later(self) -> bool:
        """The server held it when it was looked at, and lost it by that very look: then a ticket was true when it was
        written, and what counts is that the local file is still there.
        """
        return any(rule.lie in (Lie.LOSE_AFTER_HEAD_OK, Lie.LOSE_PART_AFTER_HEAD) for rule in self.rules)


def _of(lie: Lie, op: str = "", **more: object) -> Rule:
    return replace(Rule(lie=lie, op=op), **more)  # type: ignore[arg-type]  # fields of Rule, checked by its tests


_UNCHECKED = PROFILES["checks-nothing"]

STORED: dict[str, tuple[Rule, ...]] = {
    "acknowledges and has not": (_of(Lie.LOSE),),
    "gone after the first HEAD": (_of(Lie.LOSE_AFTER_HEAD_OK),),
    "gone after the second HEAD": (_of(Lie.LOSE_AFTER_HEAD_OK, amount=2),),
    "gone after the third HEAD": (_of(Lie.LOSE_AFTER_HEAD_OK, amount=3),),
    "a part gone after a HEAD": (_of(Lie.LOSE_PART_AFTER_HEAD),),
    "a part gone after two HEADs": (_of(Lie.LOSE_PART_AFTER_HEAD, amount=2),),
    "index entry without data": (_of(Lie.HOLLOW),),
    "stores nothing": (_of(Lie.STORE_EMPTY),),
    "stores half": (_of(Lie.STORE_SHORT),),
    "stores all but a byte, checks nothing": (_of(Lie.STORE_SHORT, amount=1), *_UNCHECKED),
    "a bit flips": (_of(Lie.FLIP_BYTE),),
    "a bit flips at the start": (_of(Lie.FLIP_BYTE, amount=0),),
    "a block of zeros": (_of(Lie.ZERO_BLOCK),),
    "a part of zeros": (_of(Lie.ZERO_PART),),
    "forgets a part": (_of(Lie.FORGET_PART, amount=1),),
    "forgets a part, checks nothing": (_of(Lie.FORGET_PART), *_UNCHECKED),
    "a bit flips, only MD5 is checked": (_of(Lie.FLIP_BYTE), *PROFILES["md5-only"]),
    "a bit flips, checksums are echoed": (_of(Lie.FLIP_BYTE), *PROFILES["echo"]),
    "a bit flips, nothing is checked": (_of(Lie.FLIP_BYTE), *_UNCHECKED),
    "hidden by a delete marker": (_of(Lie.DELETE_MARKER),),
    "archived at once": (_of(Lie.ARCHIVE_CLASS),),
}
"""What is stored is not what was acknowledged. These are told of a few packs only as well."""

OBJECTS: dict[str, tuple[Rule, ...]] = {
    "splices with the previous object": (_of(Lie.SPLICE), _of(Lie.ERROR_AFTER, "put", count=6)),
    "keeps no metadata, loses answers": (_of(Lie.DROP_METADATA), _of(Lie.DROP_RESPONSE, "put", first=3, count=6)),
    "etags are random": (_of(Lie.ETAG_NOT_MD5),),
    "checksums are ignored": (_of(Lie.IGNORE_CHECKSUM),),
    "checksums are echoed": (_of(Lie.ECHO_CHECKSUM),),
    "Content-MD5 is ignored": (_of(Lie.IGNORE_MD5),),
    "conditions are ignored": (_of(Lie.IGNORE_CONDITIONS),),
    "conditions are refused": (_of(Lie.REFUSE_CONDITIONS),),
    "checksum headers are refused": (_of(Lie.REJECT_CHECKSUM_HEADERS),),
    "short bodies are stored": (_of(Lie.ACCEPT_SHORT_BODY), *_UNCHECKED, _of(Lie.CUT_REQUEST, "put", count=4)),
    "framing is stored as content": (_of(Lie.STORES_AWS_CHUNKED_RAW),),
    "parts have to be equal": (_of(Lie.EQUAL_PARTS),),
    "upload forgotten": (_of(Lie.LOSE_UPLOAD, "complete_upload"),),
    "Complete says 200 and an error": (_of(Lie.COMPLETE_200_ERROR),),
    "Complete says 200, an error, and did it": (_of(Lie.COMPLETE_200_ERROR, text="done"),),
    "Complete says 200 and nothing": (_of(Lie.COMPLETE_200_EMPTY),),
    "Complete says 200 and something else": (_of(Lie.COMPLETE_200_ODD),),
    "stale HEADs": (_of(Lie.STALE_HEAD),),
    "a replica lags": (_of(Lie.LAGGING_REPLICA, amount=1),),
    "HEAD without length": (_of(Lie.HEAD_WITHOUT_LENGTH),),
    "checksums are not told": (_of(Lie.HIDE_CHECKSUM),),
    "other checksums are told": (_of(Lie.WRONG_CHECKSUM),),
    "other etags are told": (_of(Lie.WRONG_ETAG),),
    "bodies break off": (_of(Lie.TRUNCATE_BODY),),
    "bodies end early": (_of(Lie.SHORT_BODY),),
    "ranges are ignored": (_of(Lie.IGNORE_RANGE),),
    "another range is given": (_of(Lie.WRONG_RANGE, text="unlabelled"),),
    "compressed on the way": (_of(Lie.GZIP_ALWAYS),),
}
"""What is said or checked is wrong."""

REQUESTS: dict[str, tuple[Rule, ...]] = {
    "requests get lost": (_of(Lie.DROP_REQUEST, "put", first=4, count=8),),
    "answers to PUT get lost": (_of(Lie.DROP_RESPONSE, "put", first=2, count=9),),
    "answers to Complete get lost": (_of(Lie.DROP_RESPONSE, "complete_upload", count=9),),
    "PUT is done and 500 answered": (_of(Lie.ERROR_AFTER, "put", first=2, count=9),),
    "Complete is done and 500 answered": (_of(Lie.ERROR_AFTER, "complete_upload", count=9),),
    "PUT always 500": (_of(Lie.ERROR, "put", key_part=PACKS),),
    "HEAD says 500 now and then": (_of(Lie.ERROR, "head", first=2, count=9),),
    "GET says 500 now and then": (_of(Lie.ERROR, "get", first=2, count=9),),
    "SlowDown": (_of(Lie.SLOW_DOWN, "put", first=3, count=9), _of(Lie.SLOW_DOWN, "upload_part", count=9)),
    "PUT answered by a web page": (_of(Lie.HTML_200, "put", key_part=PACKS),),
    "HEAD answered by a web page": (_of(Lie.HTML_200, "head", key_part=PACKS),),
    "GET answered by a web page": (_of(Lie.HTML_200, "get", key_part=PACKS),),
    "bodies are said to be incomplete": (_of(Lie.INCOMPLETE_BODY, first=2, count=9),),
    "the token expires": (_of(Lie.EXPIRED_TOKEN, "*", first=40),),
    "the server's clock is off": (_of(Lie.CLOCK_SKEW, "*", first=60),),
    "no Date": (_of(Lie.NO_DATE, "*"),),
    "403 to HEAD": (_of(Lie.FORBIDDEN_HEAD, key_part=PACKS),),
    "absent keys are 403": (_of(Lie.ABSENT_IS_403), _of(Lie.LOSE, key_part=PACKS)),
    "another account's bucket": (_of(Lie.WRONG_OWNER, "put", key_part=PACKS),),
    "the bucket is made anew": (_of(Lie.RECREATED_BUCKET, "get", key_part=PACKS, first=6, count=1),),
    "the bucket is made anew at a HEAD": (_of(Lie.RECREATED_BUCKET, "head", key_part=PACKS, first=30, count=1),),
    "hangs": (_of(Lie.HANG, "put", key_part=PACKS, first=3, count=2),),
    "listings are empty": (_of(Lie.LIST_EMPTY),),
    "listings omit keys": (_of(Lie.LIST_OMITS),),
    "lifecycle takes objects away": (_of(Lie.LIFECYCLE_RULE),),
}
"""What befalls requests, whatever they ask."""


def _aimed(rules: tuple[Rule, ...], *parts: str) -> tuple[Rule, ...]:
    return tuple(replace(rule, key_part=part) for rule in rules for part in parts)


def _few(rules: tuple[Rule, ...]) -> Iterator[Rule]:
    """The lie itself of eight packs of middling size; what it needs to go unnoticed holds for all."""
    first, *rest = rules
    yield replace(first, key_part=PACKS, first=8, count=8)
    yield from _aimed(tuple(rest), PACKS)


def _scenes() -> Iterator[Scene]:
    yield Scene(name="honest", when=When.START, rules=())
    for name, rules in STORED.items():
        yield Scene(name=name, when=When.START, rules=_aimed(rules, PACKS, PROBE))
        yield Scene(name=name, when=When.AFTER, rules=rules)
        yield Scene(name=name, when=When.SOME, rules=tuple(_few(rules)))
    for name, rules in OBJECTS.items():
        yield Scene(name=name, when=When.START, rules=_aimed(rules, PACKS, PROBE))
        yield Scene(name=name, when=When.AFTER, rules=rules)
    for name, rules in REQUESTS.items():
        yield Scene(name=name, when=When.START, rules=rules)
        yield Scene(name=name, when=When.AFTER, rules=rules)


SCENES = tuple(replace(scene, rules=(*scene.rules, SMALL_PARTS)) for scene in _scenes())
_QUICK = (
    ("acknowledges and has not", When.AFTER),
    ("a part gone after two HEADs", When.AFTER),
    ("index entry without data", When.AFTER),
    ("stores half", When.START),
    ("a bit flips, checksums are echoed", When.START),
    ("answers to PUT get lost", When.AFTER),
)
SAMPLED = tuple(scene for scene in SCENES if (scene.name, scene.when) in _QUICK)
