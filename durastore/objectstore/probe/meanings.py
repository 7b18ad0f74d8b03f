"""What each finding means for the user, in one sentence.

Duty: words for every check and outcome; an outcome without words of its own falls back on what the outcome says.
"""

from __future__ import annotations

from collections.abc import Mapping

from durastore.objectstore.probe.result import Outcome

__all__ = ["meaning_of"]

_CHECKSUM: Mapping[Outcome, str] = {
    Outcome.REFUSED: "damage on the way to the endpoint is noticed by it",
    Outcome.IGNORED: "this checksum protects nothing here: damaged bytes are stored and acknowledged",
    Outcome.ECHOED: "the endpoint repeats what it is told, so nothing it says counts: every byte is read back",
    Outcome.INCONSISTENT: "its refusals cannot be relied on: every byte is read back",
    Outcome.UNSUPPORTED: "this checksum cannot be used here",
    Outcome.UNKNOWN: "not known, so it counts as not protected",
}
_TOLD: Mapping[Outcome, str] = {
    Outcome.RETURNED: "an object can be proven by a look at it and a spot read",
    Outcome.NOT_RETURNED: "this checksum cannot be looked at later",
    Outcome.WRONG: "what the endpoint tells about an object is not so: every byte is read back",
    Outcome.UNSUPPORTED: "this checksum cannot be used here",
    Outcome.UNKNOWN: "not known, so this checksum proves nothing later",
}
_ETAG: Mapping[Outcome, str] = {
    Outcome.MD5: "etags can be compared with an MD5 of our own",
    Outcome.OPAQUE: "etags say nothing about the bytes",
    Outcome.WRONG: "what the endpoint tells about an object is not so: every byte is read back",
    Outcome.UNSUPPORTED: "etags say nothing about the bytes",
    Outcome.UNKNOWN: "not known, so etags say nothing about the bytes",
}
_NAMES: Mapping[Outcome, str] = {
    Outcome.HONOURED: "files can be stored under their own names",
    Outcome.WRONG: "some names collide or change here; packs are safe (plain names), adopted files may be refused",
    Outcome.UNSUPPORTED: "odd names are refused here; packs are safe (plain names), adopted files may be refused",
    Outcome.UNKNOWN: "not known; packs are safe (plain names)",
}
_LISTING: Mapping[Outcome, str] = {
    Outcome.HONOURED: "inventories can be made by listing",
    Outcome.NOT_ENFORCED: "listings always begin at the start: slower, not wrong",
    Outcome.WRONG: "a listing here is not an inventory: nothing is concluded from it",
    Outcome.UNKNOWN: "these credentials may not list, or listing failed: inventories are not possible, proofs are",
}
_MEANINGS: Mapping[str, Mapping[Outcome, str]] = {
    "put.returned": _TOLD,
    "complete.returned": _TOLD,
    "put.etag": _ETAG,
    "complete.etag": _ETAG,
    "complete.size": {
        Outcome.REFUSED: "an object that lacks a part is refused by the endpoint",
        Outcome.IGNORED: "a missing part is noticed only when the object is looked at (which always happens)",
        Outcome.UNSUPPORTED: "the size cannot be told beforehand; it is looked at afterwards",
        Outcome.UNKNOWN: "not known; the size is looked at afterwards",
    },
    "put.create-only": {
        Outcome.HONOURED: "an existing object cannot be replaced by accident",
        Outcome.NOT_ENFORCED: "existing objects can be replaced; keys carry their content's digest, so data are safe",
        Outcome.UNSUPPORTED: "create-only cannot be asked for; keys carry their content's digest, so data are safe",
        Outcome.UNKNOWN: "not known; keys carry their content's digest, so data are safe",
    },
    "get.if-match": {
        Outcome.HONOURED: "a spot read is of the very object that was looked at",
        Outcome.NOT_ENFORCED: "a spot read may be of a replaced object; its bytes are compared in any case",
        Outcome.UNSUPPORTED: "a spot read may be of a replaced object; its bytes are compared in any case",
        Outcome.UNKNOWN: "not known; the bytes of a spot read are compared in any case",
    },
    "put.if-match": {
        Outcome.HONOURED: "writes can be made conditional; durastore does not need it",
        Outcome.NOT_ENFORCED: "conditional writes have no effect; durastore does not need them",
        Outcome.UNSUPPORTED: "conditional writes are not offered; durastore does not need them",
        Outcome.UNKNOWN: "not known; durastore does not need it",
    },
    "get.whole": {
        Outcome.HONOURED: "stored bytes come back",
        Outcome.BLOCKING: "stored bytes come back changed: nothing is reclaimed here",
        Outcome.UNKNOWN: "not permitted, or reading failed: nothing can be proven and nothing is reclaimed",
    },
    "get.range": {
        Outcome.HONOURED: "one block of an object can be read alone",
        Outcome.NOT_ENFORCED: "parts of an object cannot be read alone: every byte is read back",
        Outcome.WRONG: "ranges come back wrong: every byte is read back",
        Outcome.UNKNOWN: "not known: every byte is read back",
    },
    "put.truncated": {
        Outcome.REFUSED: "a write cut off in the middle leaves nothing",
        Outcome.WRONG: "a write cut off in the middle leaves a torn object: every byte is read back",
        Outcome.UNSUPPORTED: "does not apply to this kind of store",
        Outcome.UNKNOWN: "not known; size and bytes of every object are checked in any case",
    },
    "absent": {
        Outcome.HONOURED: "a 404 means that an object is not there",
        Outcome.NOT_ENFORCED: "absent and forbidden look alike (no permission to list): absence is never concluded",
        Outcome.UNKNOWN: "absence is never concluded here",
    },
    "clock": {
        Outcome.HONOURED: "ages of proofs can be checked against the server's clock",
        Outcome.WRONG: "one of the two clocks is wrong: set it; requests more than 15 minutes off are refused",
        Outcome.UNKNOWN: "ages rest on this machine's clocks alone",
    },
    "versioning": {
        Outcome.PRESENT: "replaced objects stay as versions, and cost space",
        Outcome.ABSENT: "a replaced object is gone; durastore never replaces one",
        Outcome.UNKNOWN: "not known; durastore never replaces an object",
    },
    "lifecycle": {
        Outcome.BLOCKING: "the endpoint will take these objects away: nothing is reclaimed until the rule is gone",
        Outcome.PRESENT: "rules exist that do not take our objects away as they are now: look at them",
        Outcome.ABSENT: "no rule takes objects away",
        Outcome.UNKNOWN: "the rules cannot be read: ask the bucket's owner that none expires this prefix",
    },
    "uploads": {Outcome.PRESENT: "unfinished uploads of this probe stay and may cost space: the owner can abort them"},
    "trust": {
        Outcome.HONOURED: "what was seen refused can carry proofs",
        Outcome.WRONG: "every byte is read back on every write path",
    },
    "keys.odd": _NAMES,
    "keys.twins": _NAMES,
    "list.pages": _LISTING,
    "list.order": _LISTING,
    "list.start-after": _LISTING,
}


def meaning_of(name: str, outcome: Outcome) -> str:
    """One sentence for the user. Checksum checks (`put.`, `part.`, `complete.` and a kind) share theirs."""
    words = _MEANINGS.get(name, _CHECKSUM)
    return words.get(outcome) or _CHECKSUM.get(outcome) or f"seen as {outcome.value}"
