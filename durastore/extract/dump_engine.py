"""Hidden states that somebody else's requests make a server dump into a folder.

Duty: an entry counts once its done-marker is there and newer than all of its files, and it is the sample's whose token
ids it has. Nothing is asked of a server, so nothing holds it back. Must never match an entry by its name or its order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from durastore.adopt.foreign_formats.contents import Unparsed
from durastore.adopt.foreign_formats.layouts import recognise
from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import ConfigError
from durastore.extract.conversion import RunShape
from durastore.extract.dumped import (
    ENTRY_PREFIX,
    DumpedEntry,
    NotWhole,
    find_marker,
    read_done_entry,
    tensors_of,
)
from durastore.extract.engine import Extracted, Refused
from durastore.extract.json_server import AskAgain, Unusable
from durastore.extract.request_stream import in_order
from durastore.extract.rows import TokenRow
from durastore.extract.server_settings import ServerSettings
from durastore.extract.staged_files import StagedAnswer, StagedFiles
from durastore.extract.staged_states import extracted, joined
from durastore.extract.staging_room import Reservation
from durastore.fsio.identity import FileIdentity
from durastore.model import Digest
from durastore.observe.events import LOGGER

__all__ = ["DumpEngine"]

_POLL_S = 0.1
_WINDOW_ROWS = 20_000
"""Rows that entries are compared with at a time."""

Key = bytes
Result = tuple[TokenRow, Extracted | Refused]


@dataclass(slots=True)
class _Looked:
    """What is known of the entries that were read: marker, and the tokens that they are of (None: they do not say)."""

    marks: dict[str, FileIdentity] = field(default_factory=dict)
    keys: dict[str, Key | None] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def forget_but(self, names: set[str]) -> None:
        for name in self.marks.keys() - names:
            self.forget(name)

    def forget(self, name: str) -> None:
        self.marks.pop(name, None)
        self.keys.pop(name, None)
        self.taken.discard(name)


class DumpEngine:
    """One staging folder. `start`, `health`, `extract` and `close` work without a run."""

    def __init__(
        self, settings: ServerSettings, shape: RunShape, *, served: Digest, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        if settings.staging is None:
            raise ConfigError("a folder to watch needs --staging")
        if settings.is_unverified_taken:
            raise ConfigError(
                "without a server's answer only its token ids tell which sample an entry is of",
                hint="leave --unverified-input out, or name the server with --endpoint",
            )
        self._settings = settings
        self._shape = shape
        self._served = served
        self._clock = clock
        self._staged: StagedFiles | None = None
        self._looked = _Looked()

    def start(self) -> None:
        """Join the staging folder. `ConfigError`. Safe to repeat."""
        if self._staged is None:
            assert self._settings.staging is not None
            self._staged = joined(self._settings.staging, self._settings, served=self._served, clock=self._clock)
            self._staged.tidy(is_due=True)

    def health(self) -> str | None:
        """Nothing can be asked of a folder."""
        return None

    def extract(self, batch: Sequence[TokenRow]) -> list[Extracted | Refused]:
        """One result per row, in order; refused are those for which no entry comes."""
        return in_order(batch, self.stream(iter(batch), may_wait=lambda: True))

    def stream(self, rows: Iterator[TokenRow | None], *, may_wait: Callable[[], bool]) -> Iterator[Result]:
        self.start()
        waiting: dict[Key, list[TokenRow]] = {}
        is_dry = False
        moved_s = self._clock.monotonic()
        while may_wait():
            is_dry = is_dry or _is_dry(rows, waiting)
            if is_dry and not waiting:
                break
            for result in self._found(waiting):
                moved_s = self._clock.monotonic()
                yield result
            if self._clock.monotonic() - moved_s >= self._settings.idle_s:
                for row in [row for each in waiting.values() for row in each]:
                    yield row, Refused(reason=f"no entry of it was dumped: none came for {self._settings.idle_s:g} s")
                waiting.clear()
            elif waiting:
                self._clock.sleep(_POLL_S)
                self._files.tidy()
        self._tell_unmatched()

    def close(self) -> None:
        if self._staged is not None:
            self._staged.tidy(is_due=True)
            self._staged.close()
            self._staged = None

    @property
    def _files(self) -> StagedFiles:
        assert self._staged is not None
        return self._staged

    def _found(self, waiting: dict[Key, list[TokenRow]]) -> Iterator[Result]:
        """Results of the entries that are done now."""
        try:
            names = [name for name in self._files.folder.names() if name.startswith(ENTRY_PREFIX)]
        except OSError as exc:
            LOGGER.warning("the staging folder cannot be read: %s", exc)
            return
        self._looked.forget_but(set(names))
        for name in names:
            marker = find_marker(name, self._files.folder)
            if marker is None or not self._is_wanted(name, marker, waiting=waiting):
                continue
            try:
                entry = read_done_entry(name, marker, files=self._files)
            except NotWhole as exc:
                LOGGER.debug("not taken: %s", exc)
                continue
            key = self._looked.keys[name] = _key_of(entry)
            self._looked.marks[name] = entry.files[0].identity
            if key is not None and key in waiting:
                self._looked.taken.add(name)
                yield self._result(entry, _pop(waiting, key))

    def _is_wanted(self, name: str, marker: str, *, waiting: dict[Key, list[TokenRow]]) -> bool:
        """Whether there is something new in it: not read yet, used again since, or of a row that came since."""
        looked = self._looked
        mark = self._mark_of(marker)
        if mark is None or looked.marks.get(name) != mark:
            looked.forget(name)
            return mark is not None
        return name not in looked.taken and looked.keys.get(name) in waiting

    def _mark_of(self, marker: str) -> FileIdentity | None:
        try:
            return self._files.read(marker)[1].identity
        except AskAgain:
            return None

    def _result(self, entry: DumpedEntry, row: TokenRow) -> Result:
        try:
            tensors, meta = tensors_of(entry, row, shape=self._shape, is_unverified_taken=False)
        except (AskAgain, Unusable) as exc:
            return row, Refused(reason=str(exc))
        files = self._files
        room = Reservation(files.room, 0)
        answer = StagedAnswer(request=files.new_request(), files=entry.files, room=room, entry=entry.folder)
        return row, extracted(tensors, lambda holds: files.settle(answer, holds), **meta)

    def _tell_unmatched(self) -> None:
        looked = self._looked
        left = [name for name in looked.keys if name not in looked.taken]
        nameless = sum(looked.keys[name] is None for name in left)
        if left:
            LOGGER.warning(
                "%d entries are of no sample that was waited for and stay, such as %s (%d do not tell their token ids)",
                len(left),
                left[0],
                nameless,
            )


def _is_dry(rows: Iterator[TokenRow | None], waiting: dict[Key, list[TokenRow]]) -> bool:
    """Take rows up to the window; True if there are no more."""
    count = sum(map(len, waiting.values()))
    while count < _WINDOW_ROWS:
        try:
            row = next(rows)
        except StopIteration:
            return True
        if row is None:
            return False
        waiting.setdefault(_key(row.input_ids), []).append(row)
        count += 1
    return False


def _pop(waiting: dict[Key, list[TokenRow]], key: Key) -> TokenRow:
    row = waiting[key].pop(0)
    if not waiting[key]:
        del waiting[key]
    return row


def _key_of(entry: DumpedEntry) -> Key | None:
    try:
        tokens = recognise(entry.contents, path=entry.files[-1].path).tokens
    except Unparsed:
        return None
    return None if tokens is None else _key(tokens)


def _key(ids: NDArray[np.int64]) -> Key:
    return Digest.of(ids.astype("<i8", copy=False).tobytes()).hex.encode()
