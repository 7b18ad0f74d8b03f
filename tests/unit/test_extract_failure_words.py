"""What a reason may quote and the bucket must not be told, and that no reason takes long to look at."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durastore.extract.failure_words import shareable

PROMPT = "My name is Ada Lovelace and I live at twelve Secret Street"


@pytest.mark.parametrize(
    "reason, shared",
    [
        (f"ValueError: bad text '{PROMPT * 9}"[:500], "ValueError: bad text '<text>'"),
        (f'ValueError: bad text "{PROMPT * 9}'[:500], 'ValueError: bad text "<text>"'),
        (f"the model doesn't take '{PROMPT}' here", "the model doesn't take '<text>' here"),
        (f"bad text 'I can't say that {PROMPT}', sorry", "bad text '<text>', sorry"),
        (f"bad text \u201c{PROMPT}\u201d here", "bad text \u201c<text>\u201d here"),
        (f"bad text `{PROMPT}", "bad text `<text>`"),
        (f"b'{PROMPT}' is bad", "b'<text>' is bad"),
        ("it can't do what it didn't do", "it can't do what it didn't do"),
        ("got [[1, 2, 3, 4], [5, 6, 7, 8]]", "got [[<numbers>]]"),
        ("FileNotFoundError:/srv/ada/secret.txt", "FileNotFoundError:<folder>/secret.txt"),
        (f"C:/{'Users'}/ada/x.txt is gone", "C:<folder>/x.txt is gone"),
        (r"\\\\server\share\ada\x.txt is gone", "<folder>/x.txt is gone"),
    ],
)
def test_quotes_without_an_end_and_paths_anywhere_are_left_out(reason: str, shared: str) -> None:
    assert shareable(reason) == shared
    assert shareable(shared) == shared


@pytest.mark.parametrize(
    "reason",
    [
        "Authorization: Bearer hunter2hunter2",
        "{'Authorization': 'Basic hunter2hunter2'}",
        "Authorization: Token hunter2hunter2",
        "Set-Cookie: session=hunter2hunter2",
        "secret_key = hunter2hunter2",
        "pwd=hunter2hunter2",
        "passphrase: hunter2hunter2",
        "the key AIza" + "hunter2hunter2 is bad",
        "-----BEGIN " + "RSA PRIVATE KEY----- hunter2hunter2",
    ],
)
def test_no_secret_goes_out_whatever_announces_it(reason: str) -> None:
    assert "hunter2" not in shareable(reason)
    assert "<secret>" in shareable(reason)


@given(st.text(alphabet=string.ascii_lowercase + " '\"", min_size=60, max_size=400), st.integers(60, 500))
def test_no_prompt_goes_out_however_python_quotes_it_and_wherever_it_is_cut(prompt: str, cut: int) -> None:
    shared = shareable(f"ValueError: the model can't take {prompt!r}, sorry"[:cut])
    assert shared.startswith("ValueError: the model can't take ")
    assert len(shared) <= len("ValueError: the model can't take '', sorry") + 40
