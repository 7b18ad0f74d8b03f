"""Which checksum headers are sent: the user's choice, or a probe's; an upload in parts ends with what it began with."""

from __future__ import annotations

import pytest

from durastore.errors import ConfigError
from durastore.objectstore.sent_checksums import SentChecksums


def test_a_probe_changes_what_is_sent_from_then_on() -> None:
    sent = SentChecksums()
    assert (sent.single, sent.multipart) == ("crc64nvme", "crc64nvme")
    assert not sent.use(single="crc64nvme", multipart="crc64nvme")
    assert sent.use(single="md5", multipart="none")
    assert (sent.single, sent.multipart) == ("md5", "none")


@pytest.mark.parametrize("choice", ["crc64nvme", "md5", "none"])
def test_the_users_choice_stands(choice: str) -> None:
    sent = SentChecksums(choice)
    assert not sent.use(single="md5", multipart="none")
    assert (sent.single, sent.multipart) == (choice, choice)


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match="sha1"):
        SentChecksums("sha1")


def test_an_upload_under_way_keeps_what_it_began_with() -> None:
    sent = SentChecksums()
    sent.begin("u", kind=sent.multipart)
    sent.use(single="md5", multipart="md5")
    assert (sent.of("u"), sent.of("of an earlier process")) == ("crc64nvme", "md5")
    sent.end("u")
    assert sent.of("u") == "md5"


def test_uploads_that_never_end_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durastore.objectstore.sent_checksums._MOST_UPLOADS", 2)
    sent = SentChecksums()
    for name in "abc":
        sent.begin(name, kind="none")
    assert [sent.of(name) for name in "abc"] == ["crc64nvme", "none", "none"]
