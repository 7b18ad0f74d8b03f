"""How an extraction was started is told without a secret, and leads to the command that goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from durastore.clock import SYSTEM_CLOCK
from durastore.doctor.resume import resumed_command, shell_line
from durastore.extract.starts import Start, environment_of, without_user_info

TYPED = ("durastore", "extract", "train it.jsonl", "--model", "m", "--local", "spool", "--bucket", "s3://b/p")


def _start(folder: Path, *command: str) -> Start:
    return Start(
        stamp=SYSTEM_CLOCK.stamp(),
        pid=7,
        command=command or TYPED,
        folder=str(folder),
        environment={"DURASTORE_SEAL_AGE_S": "2"},
        run="0" * 32,
        bucket="s3://b/p",
        local="spool",
        input="train it.jsonl",
        model="m",
        max_tokens=40,
    )


def test_only_what_is_no_secret_is_kept_of_the_environment() -> None:
    kept = environment_of(
        {
            "DURASTORE_SETTLE_S": "60",
            "DURASTORE_BUCKET": "s3://b/p",
            "DURASTORE_SECRET_KEY": "hidden",
            "AWS_PROFILE": "lab",
            "AWS_SECRET_ACCESS_KEY": "hidden",
            "AWS_SESSION_TOKEN": "hidden",
            "AWS_ENDPOINT_URL": "https://me:hidden@host:9000/x",
            "HF_TOKEN": "hidden",
            "HTTPS_PROXY": "http://me:hidden@proxy",
            "PATH": "/bin",
        }
    )
    assert kept == {
        "DURASTORE_SETTLE_S": "60",
        "DURASTORE_BUCKET": "s3://b/p",
        "AWS_PROFILE": "lab",
        "AWS_ENDPOINT_URL": "https://host:9000/x",
    }


@pytest.mark.parametrize(
    "text, kept",
    [
        ("--endpoint-url=http://u:p@h:1/", "--endpoint-url=http://h:1/"),
        ("https://token@h", "https://h"),
        ("http://a:b@c:d@h/x", "http://h/x"),
        ("s3://bucket/mail@example", "s3://bucket/mail@example"),
        ("me@host:/path", "me@host:/path"),
        ("caf\udce9", "caf\\udce9"),
    ],
)
def test_user_information_leaves_urls_and_nothing_else(text: str, kept: str) -> None:
    assert without_user_info(text) == kept


def test_the_command_is_word_for_word_what_was_typed(tmp_path: Path) -> None:
    start = _start(tmp_path)
    assert resumed_command(start, root=tmp_path / "spool") == TYPED
    assert shell_line(start, TYPED).startswith(f"cd {tmp_path} && durastore extract 'train it.jsonl' --model m")


@pytest.mark.parametrize(
    "typed, expected",
    [
        (("durastore", "--local", "spool", "-x"), ("durastore", "--local", "/new/root", "-x")),
        (("durastore", "--local=spool", "-x"), ("durastore", "--local=/new/root", "-x")),
        (("durastore", "-x"), ("durastore", "-x", "--local", "/new/root")),
    ],
)
def test_only_local_is_another_where_the_root_moved(
    tmp_path: Path, typed: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert resumed_command(_start(tmp_path, *typed), root=Path("/new/root")) == expected


def test_a_link_that_leads_to_the_root_is_the_root(tmp_path: Path) -> None:
    (tmp_path / "moved").mkdir()
    (tmp_path / "spool").symlink_to(tmp_path / "moved")
    assert resumed_command(_start(tmp_path), root=tmp_path / "moved") == TYPED
