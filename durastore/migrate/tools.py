"""What every copy needs, and two steps that several ways to a proven copy share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from durastore.fsio.identity import FileIdentity
from durastore.fsio.sys import SYS
from durastore.fsio.traces import Traces
from durastore.migrate.outcome import Item, StopCopying
from durastore.migrate.places import Target
from durastore.migrate.reading import SourceRead, SourceReader
from durastore.migrate.record import Prior, Proven, ProvenLog
from durastore.verify.copied import CopiedFile

__all__ = ["CopyTools", "judged", "sync_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTools:
    """Shared by all threads."""

    target: Target
    log: ProvenLog
    known: dict[str, Proven]
    """On record from earlier runs."""
    names: dict[str, frozenset[str]]
    """Folder -> names that DST has there already."""
    reader: SourceReader
    jobs: int
    traces: Traces = field(default_factory=Traces)

    def leaves_trace(self, source: FileIdentity, target: FileIdentity) -> bool:
        """Whether both would have other times had somebody written to them: else what is on record, or was read a
        moment ago, says nothing of their bytes now (a mapped write in memory, ADR 0023).
        """
        return self.traces.are_left(source.dev) and self.traces.are_left(target.dev)


def judged(copied: CopiedFile, read: SourceRead, *, item: Item, tools: CopyTools) -> Proven:
    """The copy with what the source was held against: the journal's digest, or what its format says."""
    damage, prior = read.damage, read.prior
    if item.seal is not None:
        damage = None if item.seal == copied.digest else "its bytes are not those that were sealed"
        prior = Prior.DIGEST if damage is None else Prior.NONE
    if not tools.leaves_trace(copied.source, copied.target):
        copied = replace(copied, is_quiet=False, is_read_back=False)  # both are read once more before one is freed
    is_unsure = read.has_writer or read.is_young
    return Proven(copied=copied, prior=prior, damage=damage, has_writer=read.has_writer, is_unsure=is_unsure)


def sync_file(fd: int) -> None:
    """`StopCopying` if the target cannot be synced; never tried twice on one file."""
    try:
        SYS.fsync(fd)
    except OSError as exc:
        raise StopCopying.of(exc) from exc
