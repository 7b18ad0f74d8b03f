"""What of a failure's reason is told to the bucket.

Duty: leave out what a reason may quote and nobody meant to share: quoted text (prompts, rows of the input), lists of
numbers (token ids), folders, secrets. The whole reason stays on the machine. A net with holes: what a library writes
into an exception, nobody can know; so a reason is also cut short.
"""

from __future__ import annotations

import re

from durastore.formats.failure_list import TEXT_LIMITS, plain_text

__all__ = ["shareable"]

_LIMIT = min(300, TEXT_LIMITS["reason"])
_LOOKED_AT = 2_000
_LONGEST_QUOTE = 40
_MOST_NUMBERS = 8
# Reasons are anybody's text, and each pattern is for all of them: none may look at a character again and again.
# An address keeps what tells one server from another; its user, path and query go.
_ADDRESS = re.compile(r"\b([a-z][a-z0-9+.-]{1,15}://)(?:[^/?#\s'\"]*@)?([^/?#\s'\"]*)[^\s'\"]*", re.IGNORECASE)
_SECRET = re.compile(
    r"\b(?:bearer|basic)\s+[^\s'\",;]{8,}"
    r"|\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[a-z]-|AIza)[A-Za-z0-9_-]{8,}"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_.-]+"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY.*",
    re.IGNORECASE,
)
_IS = r"(\s*[=:]\s*|['\"]\s*:\s*)"
# The value of a header has words: a scheme, then what it is for.
_SECRET_HEADER = re.compile(rf"(authorization|cookie){_IS}(?:'[^']*'|\"[^\"]*\"|[^'\",;)}}\]]+)", re.IGNORECASE)
_NAMED_SECRET = re.compile(
    r"(passw(?:or)?d|pwd|passphrase|secret|token|(?:api|access|secret|private)[_-]?key|credential|signature)"
    rf"{_IS}(?!\d{{1,9}}\b)(?:'[^']*'|\"[^\"]*\"|[^\s,;)}}\]]+)",
    re.IGNORECASE,
)
_PATH = re.compile(
    r"(?<![\w/.<>])(?:~|\.{1,2})?(?:/[^\s/'\"`:,;()\[\]{}<>]+)+/?"
    r"|\b[A-Za-z]:\\[^\s'\"]+|(?<!\S)\\\\[^\s'\"]+"
)
# Reasons are cut before they come here, so a quote may have no end; and it does not begin or end within a word.
_QUOTE = re.compile(
    r"(?<!\w\w)'(?:[^'\\]|\\.|'(?=\w))*(?:'|\\?$)|\"(?:[^\"\\]|\\.)*(?:\"|\\?$)|`[^`]*(?:`|$)|\u201c[^\u201d]*(?:\u201d|$)"
)
_CLOSING = {"\u201c": "\u201d"}
_NUMBERS = re.compile(rf"-?\d++(?:\.\d++)?+(?:[\s,;()\[\]]++-?\d++(?:\.\d++)?+){{{_MOST_NUMBERS - 1},}}+")


def shareable(reason: str) -> str:
    """The reason on one line of at most 300 characters, without what is left out."""
    text = _ADDRESS.sub(lambda found: f"{found[1]}{found[2]}", plain_text(reason, limit=_LOOKED_AT))
    text = _SECRET_HEADER.sub(lambda found: f"{found[1]}{found[2]}<secret>", text)
    text = _SECRET.sub("<secret>", text)
    text = _NAMED_SECRET.sub(lambda found: f"{found[1]}{found[2]}<secret>", text)
    text = _QUOTE.sub(_short_quote, text)
    text = _NUMBERS.sub("<numbers>", text)
    text = _PATH.sub(_last_name, text)
    return plain_text(text, limit=_LIMIT)


def _short_quote(found: re.Match[str]) -> str:
    opening = found[0][0]
    return found[0] if len(found[0]) <= _LONGEST_QUOTE + 2 else f"{opening}<text>{_CLOSING.get(opening, opening)}"


def _last_name(found: re.Match[str]) -> str:
    *folders, name = re.split(r"[/\\]", found[0].rstrip("/\\"))
    return "<folder>" if folders[-1:] in (["home"], ["Users"]) else f"<folder>/{name}"
