"""Odd key names, and listings of them: order, pages, start-after.

Duty: see whether names come back as they went in, whether names that only case or Unicode form tells apart stay apart,
and whether a listing is whole and ordered. Findings go to the interview; nothing here decides a level.
"""

from __future__ import annotations

import os
import unicodedata
from dataclasses import dataclass, field
from itertools import pairwise

from durastore.objectstore.probe.interview import Interview
from durastore.objectstore.probe.port import Answer, ListedPage, ListQuery
from durastore.objectstore.probe.result import Outcome
from durastore.objectstore.probe.single import CASE_TWINS
from durastore.objectstore.probe.weigh import shown_all

__all__ = ["check_names"]

# Spaces, plus, an escaped slash, quotes, an accent; the first character sorts before the next one's in UTF-8 and after
# it in UTF-16.
_ODD = "odd/\uff5e b+c%2Fd&'=\u00e9"
_LATE = "odd/\U0001f600"
_PLAIN = "odd/k/child"
_PAGE_KEYS = 4
_PAGE_LIMIT = 4
BODY_BYTES = 512


@dataclass(slots=True, kw_only=True)
class _Listing:
    answers: list[Answer] = field(default_factory=list)
    pages: list[ListedPage] = field(default_factory=list)

    @property
    def keys(self) -> list[str]:
        return [key for page in self.pages for key in page.keys]


def check_names(talk: Interview) -> None:
    """Needs the objects of the single and plain checks, whose names take part."""
    odd, twin = _ODD, unicodedata.normalize("NFD", _ODD)
    bodies = {name: os.urandom(BODY_BYTES) for name in (odd, twin, _LATE)}
    stored = {name: talk.put(talk.base + name, body) for name, body in bodies.items()}
    read = talk.get(talk.base + odd) if stored[odd].is_success else stored[odd]
    _note_odd(talk, read, bodies=(bodies[odd], bodies[twin]))
    listing = _fetch_listing(talk)
    _note_twins(talk, read, is_clear=bodies[odd] == read.body and stored[twin].is_success, listing=listing)
    _note_listing(talk, listing, expected={key for key in talk.stored if key.startswith(talk.base + "odd/")})
    _check_start_after(talk, listing)


def _note_odd(talk: Interview, read: Answer, *, bodies: tuple[bytes, bytes]) -> None:
    if not read.is_success:
        outcome = Outcome.UNSUPPORTED if read.is_refusal else Outcome.UNKNOWN
        talk.note("keys.odd", outcome, detail=read.shown())
    elif read.body in bodies:
        talk.note("keys.odd", Outcome.HONOURED, detail="stored and read under a name of spaces, +, %, quotes, accents")
    else:
        talk.note("keys.odd", Outcome.WRONG, detail="other bytes came back under an odd name")


def _note_twins(talk: Interview, read: Answer, *, is_clear: bool, listing: _Listing) -> None:
    """Case twins are told apart by the listing; Unicode twins by the first one's bytes still being its own."""
    twins = {talk.base + name for name in CASE_TWINS}
    has_case = twins <= set(listing.keys)
    is_folded = twins <= talk.stored and len(twins & set(listing.keys)) == 1
    seen = f"Unicode forms {'stay apart' if is_clear else 'not seen apart'}, case {'kept' if has_case else 'not seen'}"
    if is_clear and has_case:
        outcome = Outcome.HONOURED
    elif is_folded or (talk.outcome("keys.odd") is Outcome.HONOURED and not is_clear):
        outcome = Outcome.WRONG
    else:
        outcome = Outcome.UNKNOWN
    talk.note("keys.twins", outcome, detail=seen if read.is_success else f"{seen}; {read.shown()}")


def _fetch_listing(talk: Interview) -> _Listing:
    listing, token = _Listing(), None
    for _ in range(_PAGE_LIMIT):
        answer = talk.list_page(ListQuery(prefix=talk.base + "odd/", max_keys=_PAGE_KEYS, token=token))
        listing.answers.append(answer)
        if answer.page is None:
            break
        listing.pages.append(answer.page)
        token = answer.page.next_token
        if not answer.page.is_truncated or token is None:
            break
    return listing


def _note_listing(talk: Interview, listing: _Listing, *, expected: set[str]) -> None:
    last = listing.answers[-1]
    if last.page is None:
        for name in ("list.pages", "list.order"):
            talk.note(name, Outcome.UNKNOWN, detail=shown_all(listing.answers))
        return
    keys = listing.keys
    missing, is_repeating = expected - set(keys), len(set(keys)) != len(keys)
    is_outside = not all(key.startswith(talk.base + "odd/") for key in keys)
    if last.page.is_truncated:
        outcome, detail = Outcome.WRONG, "says that more follows, but never ends or does not say how to ask for it"
    elif missing or is_repeating or is_outside:
        outcome = Outcome.WRONG
        detail = (
            f"{len(missing)} of {len(expected)} keys just written are missing" if missing else "repeated or foreign"
        )
    else:
        outcome, detail = Outcome.HONOURED, f"{len(keys)} keys on {len(listing.pages)} pages, each once"
    talk.note("list.pages", outcome, detail=detail)
    is_ordered = all(a.encode() < b.encode() for a, b in pairwise(keys))
    outcome = Outcome.HONOURED if is_ordered and len(keys) > 1 else Outcome.WRONG if len(keys) > 1 else Outcome.UNKNOWN
    talk.note("list.order", outcome, detail="UTF-8 byte order" if is_ordered else "not in UTF-8 byte order")


def _check_start_after(talk: Interview, listing: _Listing) -> None:
    keys = sorted(listing.keys, key=str.encode)
    if len(keys) < 2:
        talk.note("list.start-after", Outcome.UNKNOWN, detail="no listing to start in")
        return
    answer = talk.list_page(ListQuery(prefix=talk.base + "odd/", max_keys=1000, start_after=keys[0]))
    if answer.page is None:
        talk.note("list.start-after", Outcome.UNKNOWN, detail=answer.shown())
    elif sorted(answer.page.keys, key=str.encode) == keys[1:]:
        talk.note("list.start-after", Outcome.HONOURED, detail="begins after the key it was told")
    elif keys[0] in answer.page.keys:
        talk.note("list.start-after", Outcome.NOT_ENFORCED, detail="begins at the start all the same")
    else:
        talk.note("list.start-after", Outcome.WRONG, detail="leaves out keys that follow")
