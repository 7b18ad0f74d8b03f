"""The level asked for is what this endpoint showed on this write path, and READ_BACK wherever that is not known."""

from __future__ import annotations

from typing import Any

import pytest

from durastore.clock import ManualClock
from durastore.errors import InvalidInput
from durastore.model import EvidenceLevel
from durastore.objectstore.probe.result import ChecksumKind
from tests.unit.verify_lab import DATA, policy, probe_result, record

PACK = record(ManualClock())
CRC, MD5 = ChecksumKind.CRC64NVME, ChecksumKind.ETAG_MD5


def test_without_a_probe_everything_is_read_back() -> None:
    bare = policy()
    assert (bare.probe_id, bare.checksum_for(PACK), bare.level_for(PACK)) == (None, None, EvidenceLevel.READ_BACK)


@pytest.mark.parametrize("kind", [CRC, MD5])
def test_what_the_probe_saw_refused_attests(kind: ChecksumKind) -> None:
    chosen = policy(probe=probe_result(kind))
    assert (chosen.checksum_for(PACK), chosen.level_for(PACK)) == (kind, EvidenceLevel.ATTESTED)
    assert chosen.probe_id == "00112233445566ff"


@pytest.mark.parametrize("kind", [ChecksumKind.CRC32, ChecksumKind.SHA256, ChecksumKind.CONTENT_MD5])
def test_a_checksum_that_we_cannot_compare_later_attests_nothing(kind: ChecksumKind) -> None:
    with pytest.raises(InvalidInput, match="nothing attests"):
        probe_result(kind)
    chosen = policy(probe=probe_result(kind, level_single=EvidenceLevel.READ_BACK))
    assert (chosen.checksum_for(PACK), chosen.level_for(PACK)) == (None, EvidenceLevel.READ_BACK)


def test_a_checksum_counts_only_with_its_level() -> None:
    # it is sent on this path, and a wrong one was not refused
    chosen = policy(probe=probe_result(CRC, level_single=EvidenceLevel.READ_BACK))
    assert (chosen.checksum_for(PACK), chosen.level_for(PACK)) == (None, EvidenceLevel.READ_BACK)


def test_each_write_path_speaks_for_itself() -> None:
    single, multipart = probe_result(CRC), probe_result(None, MD5)
    for limit, is_multipart in ((len(DATA), False), (len(DATA) - 1, True)):
        for probe, kind, is_its_path in ((single, CRC, not is_multipart), (multipart, MD5, is_multipart)):
            chosen = policy(probe=probe, multipart_above=limit)
            assert chosen.is_multipart(PACK) is is_multipart
            assert chosen.checksum_for(PACK) is (kind if is_its_path else None)


def test_how_a_pack_went_counts_before_todays_limit() -> None:
    single, multipart = probe_result(CRC), probe_result(None, CRC)
    for sent, limit, is_multipart in ((0, len(DATA) - 1, False), (7, len(DATA), True)):
        pack = record(ManualClock(), part_bytes=sent)
        for probe, is_its_path in ((single, not is_multipart), (multipart, is_multipart)):
            chosen = policy(probe=probe, multipart_above=limit)
            assert chosen.is_multipart(pack) is is_multipart
            assert chosen.checksum_for(pack) is (CRC if is_its_path else None)
    assert policy(part_bytes=9).part_bytes_of(record(ManualClock(), part_bytes=7)) == 7
    assert policy(part_bytes=9).part_bytes_of(PACK) == 9


@pytest.mark.parametrize("size_bytes", [None, 0])
def test_a_pack_of_unknown_size_is_read_back(size_bytes: int | None) -> None:
    facts: dict[str, Any] = {"size_bytes": size_bytes}
    chosen = policy(probe=probe_result(CRC), multipart_above=0)
    pack = record(ManualClock(), **facts)
    assert chosen.is_multipart(pack) is False
    assert chosen.checksum_for(pack) is (None if size_bytes is None else CRC)
