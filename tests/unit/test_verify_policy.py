"""The level asked for is what this endpoint showed on this write path, and READ_BACK wherever that is not known."""

from __future__ import annotations

from typing import Any

import pytest

from durastore.clock import ManualClock
from durastore.errors import InvalidInput
from durastore.model import EvidenceLevel
from durastore.objectstore.probe.result import ChecksumKind
from tests.unit.verify_lab import policy, probe_result, record

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
    for sent in (0, 7):
        pack = record(ManualClock(), part_bytes=sent)
        for probe, kind, is_its_path in ((single, CRC, not sent), (multipart, MD5, bool(sent))):
            chosen = policy(probe=probe)
            assert chosen.is_multipart(pack) is bool(sent)
            assert chosen.checksum_for(pack) is (kind if is_its_path else None)
    assert policy(part_bytes=9).part_bytes_of(record(ManualClock(), part_bytes=7)) == 7


@pytest.mark.parametrize(
    "single, multipart, kind",
    [(CRC, None, None), (None, CRC, None), (CRC, MD5, None), (MD5, MD5, None), (None, None, None), (CRC, CRC, CRC)],
)
def test_a_pack_of_which_nobody_knows_how_it_went_needs_both_paths(
    single: ChecksumKind | None, multipart: ChecksumKind | None, kind: ChecksumKind | None
) -> None:
    # an etag of MD5s can only be compared by who knows the parts
    pack = record(ManualClock(), part_bytes=None)
    chosen = policy(probe=probe_result(single, multipart), part_bytes=9)
    assert chosen.checksum_for(pack) is kind
    assert chosen.level_for(pack) is (EvidenceLevel.ATTESTED if kind else EvidenceLevel.READ_BACK)
    assert (chosen.is_multipart(pack), chosen.part_bytes_of(pack)) == (True, 9)


@pytest.mark.parametrize("size_bytes", [None, 0])
def test_a_pack_of_unknown_size_is_read_back(size_bytes: int | None) -> None:
    facts: dict[str, Any] = {"size_bytes": size_bytes}
    chosen = policy(probe=probe_result(CRC))
    pack = record(ManualClock(), **facts)
    assert chosen.checksum_for(pack) is (None if size_bytes is None else CRC)
