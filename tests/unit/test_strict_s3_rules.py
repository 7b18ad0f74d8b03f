"""Rules of the strict server that could never be due: refused when they are made."""

from __future__ import annotations

from typing import Any, cast

import pytest

from durastore.errors import InvalidInput
from durastore.testing.strict_s3 import PROFILES, Lie, Rule, parse_rules
from durastore.testing.strict_s3.operations import OPERATIONS


@pytest.mark.parametrize(
    "values, words, hint",
    [
        ({"op": "puts"}, "no operation is called 'puts'", "did you mean put"),
        ({"op": "PutObject"}, "no operation is called 'PutObject'", ""),
        ({"op": "get"}, "flip-byte is never told in get", "it is told in put complete_upload copy"),
        ({"op": "put", "first": 0}, "no request is due", ""),
        ({"op": "put", "count": 0}, "no request is due", ""),
    ],
)
def test_a_rule_that_could_never_be_due_is_refused(values: dict[str, Any], words: str, hint: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refusal:
        Rule(lie=Lie.FLIP_BYTE, **values)
    assert hint in (refusal.value.hint or "")


def test_a_name_in_the_place_of_a_lie_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'flip-byte' is no lie"):
        Rule(lie=cast(Lie, "flip-byte"))


def test_every_lie_can_be_told_wherever_it_says() -> None:
    for lie in Lie:
        for op in (*OPERATIONS, "") if "*" in lie.ops else (*lie.ops, "", "*"):
            assert Rule(lie=lie, op=op).lie is lie
    assert all(rules is not None for rules in PROFILES.values())


@pytest.mark.parametrize(
    "text, words",
    [
        ('[{"lie": "flip-byte", "op": "puts"}]', "no operation is called"),
        ('[{"lie": "flip-byte", "keypart": "packs/"}]', "not a script of rules: .*keypart"),
        ('[{"op": "put"}]', "a rule has no 'lie'"),
    ],
)
def test_a_script_is_held_to_the_same(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        parse_rules(text)
