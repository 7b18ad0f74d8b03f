"""An object store that fails as it is told: which operation, at which call, in which way.

Duty: put the failures of real endpoints between a caller and any `ObjectStore`, in-process and repeatable. Acts only
on what it answers and remembers; must never change anything in the store below except through that store's own port.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from durastore.errors import (
    AmbiguousWrite,
    DurastoreError,
    EndpointUnreachable,
    IntegrityError,
    InvalidInput,
    ObjectAbsent,
)
from durastore.model import ObjectKey
from durastore.objectstore.classify import Refusal, classify_refusal
from durastore.objectstore.listing import Listing, pages_of
from durastore.objectstore.port import (
    Body,
    ListPage,
    ObjectReader,
    ObjectStat,
    ObjectStore,
    OpenUpload,
    PartReply,
    WriteReply,
)
from durastore.testing.faults import Fault, FaultRule
from durastore.testing.wrong_bytes import misread, with_wrong_byte, with_zero_block

__all__ = ["Fault", "FaultRule", "FaultyReader", "FaultyStore"]

T = TypeVar("T")


_REFUSALS = {
    Fault.SERVER_ERROR: Refusal(status=500, server_code="InternalError"),
    Fault.SLOW_DOWN: Refusal(status=503, server_code="SlowDown"),
    Fault.FORBIDDEN: Refusal(status=403, server_code="AccessDenied"),
    Fault.ABSENT: Refusal(status=404, server_code="NoSuchKey"),
}


@dataclass(slots=True)
class _State:
    """Shared by a store and all its readers."""

    rules: list[tuple[FaultRule, list[int]]]
    lock: threading.Lock = field(default_factory=threading.Lock)
    calls: list[tuple[str, str]] = field(default_factory=list)
    lost: set[ObjectKey] = field(default_factory=set)
    damage: dict[ObjectKey, Callable[[int, bytes], bytes]] = field(default_factory=dict)
    before: dict[ObjectKey, ObjectStat | None] = field(default_factory=dict)

    def due(self, op: str, key: str) -> Fault | None:
        """Count this call in every rule; the fault of the first rule that is due."""
        found: Fault | None = None
        with self.lock:
            self.calls.append((op, key))
            for rule, seen in self.rules:
                if rule.op not in (op, "*") or rule.key_part not in key:
                    continue
                seen[0] += 1
                if found is None and rule.is_due(seen[0]):
                    found = rule.fault
        return found


def _call(state: _State, op: str, *, key: ObjectKey, is_write: bool, action: Callable[[Fault | None], T]) -> T:
    """`action` with the faults around it that every operation can have; it gets the others to act on itself."""
    fault = state.due(op, key.text)
    _raise_before(fault, op, key=key.text, is_write=is_write)
    result = action(fault)
    if fault is Fault.DROP_RESPONSE:
        lost = AmbiguousWrite if is_write else EndpointUnreachable
        raise lost(f"{op} {key}: the answer was lost (scripted)")
    return result


def _raise_before(fault: Fault | None, op: str, *, key: str, is_write: bool) -> None:
    if fault is Fault.DROP_REQUEST:
        raise EndpointUnreachable(f"{op} {key}: no connection (scripted)")
    if fault in _REFUSALS:
        raise classify_refusal(_REFUSALS[fault], write=is_write, what=op, key=key)


class FaultyReader:
    """`ObjectReader` with faults."""

    def __init__(self, reader: ObjectReader, state: _State) -> None:
        self._reader = reader
        self._state = state

    def head(self, key: ObjectKey) -> ObjectStat:
        def action(fault: Fault | None) -> ObjectStat:
            if fault is Fault.STALE_HEAD:
                with self._state.lock:
                    stale = self._state.before.get(key)
                return stale if stale is not None else _absent("head", key)
            self._check_lost("head", key)
            return self._reader.head(key)

        return _call(self._state, "head", key=key, is_write=False, action=action)

    def fetch(
        self,
        key: ObjectKey,
        *,
        offset: int = 0,
        length: int | None = None,
        if_match: str | None = None,
        version_id: str | None = None,
    ) -> bytes:
        def action(fault: Fault | None) -> bytes:
            self._check_lost("fetch", key)
            data = self._reader.fetch(key, offset=offset, length=length, if_match=if_match, version_id=version_id)
            data = self._damaged(key, offset, data=data)
            if fault is Fault.WRONG_BYTE:
                return misread(data)
            if fault is Fault.SHORT_READ:
                return data[: len(data) // 2]
            _raise_broken(fault, key)
            return data

        return _call(self._state, "fetch", key=key, is_write=False, action=action)

    def fetch_chunks(
        self, key: ObjectKey, *, chunk_bytes: int = 1 << 20, version_id: str | None = None
    ) -> Iterator[bytes]:
        def action(fault: Fault | None) -> tuple[Fault | None, bytes]:
            self._check_lost("fetch_chunks", key)
            chunks = self._reader.fetch_chunks(key, chunk_bytes=chunk_bytes, version_id=version_id)
            return fault, self._damaged(key, 0, data=b"".join(chunks))

        fault, data = _call(self._state, "fetch_chunks", key=key, is_write=False, action=action)
        if fault is Fault.WRONG_BYTE:
            data = misread(data)
        stop = len(data) // 2 if fault in (Fault.SHORT_READ, Fault.TRUNCATE, Fault.CUT_BODY) else len(data)
        for start in range(0, stop, chunk_bytes):
            yield data[start : min(start + chunk_bytes, stop)]
        _raise_broken(fault, key)

    def close(self) -> None:
        self._reader.close()

    def _check_lost(self, op: str, key: ObjectKey) -> None:
        with self._state.lock:
            is_lost = key in self._state.lost
        if is_lost:
            _absent(op, key)

    def _damaged(self, key: ObjectKey, offset: int, *, data: bytes) -> bytes:
        with self._state.lock:
            damage = self._state.damage.get(key)
        return damage(offset, data) if damage is not None else data


def _absent(op: str, key: ObjectKey) -> ObjectStat:
    raise classify_refusal(_REFUSALS[Fault.ABSENT], write=False, what=op, key=key)


def _raise_broken(fault: Fault | None, key: ObjectKey) -> None:
    if fault is Fault.TRUNCATE:
        raise IntegrityError(f"fetch {key}: the body ended early (scripted)")
    if fault is Fault.CUT_BODY:
        raise EndpointUnreachable(f"fetch {key}: the connection broke (scripted)")


class FaultyStore:
    """`ObjectStore` with faults over any other. `calls` lists every (operation, key) in order. Thread-safe."""

    def __init__(self, store: ObjectStore, *rules: FaultRule) -> None:
        self.inner = store
        self._state = _State([(rule, [0]) for rule in rules])
        self._reader = FaultyReader(store, self._state)

    @property
    def calls(self) -> list[tuple[str, str]]:
        with self._state.lock:
            return list(self._state.calls)

    def count(self, op: str) -> int:
        """How often `op` was called so far, faults included."""
        return sum(1 for name, _ in self.calls if name == op)

    def add(self, *rules: FaultRule) -> None:
        """More faults, counted from now on."""
        with self._state.lock:
            self._state.rules += [(rule, [0]) for rule in rules]

    def heal(self) -> None:
        """Forget all rules; what was lost or damaged stays so."""
        with self._state.lock:
            self._state.rules.clear()

    @contextmanager
    def truthful(self) -> Iterator[None]:
        """Inside the block no rule acts or counts, for an oracle's look; what was lost or damaged stays so."""
        with self._state.lock:
            rules, self._state.rules = self._state.rules, []
        try:
            yield
        finally:
            with self._state.lock:
                self._state.rules = rules

    def lose(self, key: ObjectKey) -> None:
        """From now on the object is gone, as after a server's power cut."""
        with self._state.lock:
            self._state.lost.add(key)

    def damage(self, key: ObjectKey, fault: Fault) -> None:
        """From now on the stored bytes of `key` are wrong by `ZERO_BLOCK` or `FLIP_BYTE`; else `InvalidInput`."""
        if fault not in (Fault.ZERO_BLOCK, Fault.FLIP_BYTE):
            raise InvalidInput(f"{fault.name} is no damage of stored bytes", hint="ZERO_BLOCK or FLIP_BYTE")
        with self._state.lock:
            self._state.damage[key] = with_zero_block if fault is Fault.ZERO_BLOCK else with_wrong_byte

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def failure_domain(self) -> str:
        return self.inner.failure_domain

    def fresh_reader(self) -> ObjectReader:
        return FaultyReader(self.inner.fresh_reader(), self._state)

    def close(self) -> None:
        self.inner.close()

    def check_bucket(self) -> None:
        _raise_before(self._state.due("check_bucket", ""), "check_bucket", key="", is_write=False)
        self.inner.check_bucket()

    def head(self, key: ObjectKey) -> ObjectStat:
        return self._reader.head(key)

    def fetch(self, key: ObjectKey, **asked: Any) -> bytes:
        return self._reader.fetch(key, **asked)

    def fetch_chunks(
        self, key: ObjectKey, *, chunk_bytes: int = 1 << 20, version_id: str | None = None
    ) -> Iterator[bytes]:
        return self._reader.fetch_chunks(key, chunk_bytes=chunk_bytes, version_id=version_id)

    def list(self, prefix: str, *, start_after: str | None = None) -> Listing:
        fault = self._state.due("list", prefix)
        _raise_before(fault, "list", key=prefix, is_write=False)
        if fault is Fault.DROP_RESPONSE:
            raise EndpointUnreachable(f"list {prefix}: the answer was lost (scripted)")
        pages = self._pages(self.inner.list(prefix, start_after=start_after), fault)
        return pages_of(pages, prefix=prefix, start_after=start_after)

    def _pages(self, pages: Iterator[ListPage], fault: Fault | None) -> Iterator[ListPage]:
        for number, page in enumerate(pages):
            with self._state.lock:
                shown = [row for row in page if row.key not in self._state.lost]
            if number == 0 and fault is Fault.SHORT_PAGE:
                shown = shown[:-1]
            yield shown
            if number == 0 and fault is Fault.REPEAT_PAGE:
                yield shown

    def put(
        self, key: ObjectKey, body: Body, *, crc64nvme: str | None, metadata: Mapping[str, str], if_absent: bool = False
    ) -> WriteReply:
        def action(fault: Fault | None) -> WriteReply:
            self._remember(key)
            kept, checksum = (b"", None) if fault is Fault.STORE_EMPTY else (body, crc64nvme)
            is_create_only = if_absent and not self._is_lost(key)  # the store below still has what was lost here
            reply = self.inner.put(key, kept, crc64nvme=checksum, metadata=metadata, if_absent=is_create_only)
            self._afflict(key, fault)
            return reply

        return _call(self._state, "put", key=key, is_write=True, action=action)

    def create_upload(self, key: ObjectKey, *, metadata: Mapping[str, str]) -> str:
        return _call(
            self._state,
            "create_upload",
            key=key,
            is_write=True,
            action=lambda _: self.inner.create_upload(key, metadata=metadata),
        )

    def upload_part(self, key: ObjectKey, upload_id: str, *, number: int, body: Body, crc64nvme: str) -> PartReply:
        return _call(
            self._state,
            "upload_part",
            key=key,
            is_write=True,
            action=lambda _: self.inner.upload_part(key, upload_id, number=number, body=body, crc64nvme=crc64nvme),
        )

    def complete_upload(
        self, key: ObjectKey, upload_id: str, *, parts: Sequence[PartReply], size_bytes: int, crc64nvme: str
    ) -> WriteReply:
        def action(fault: Fault | None) -> WriteReply:
            self._remember(key)
            reply = self.inner.complete_upload(key, upload_id, parts=parts, size_bytes=size_bytes, crc64nvme=crc64nvme)
            self._afflict(key, fault)
            return reply

        return _call(self._state, "complete_upload", key=key, is_write=True, action=action)

    def abort_upload(self, key: ObjectKey, upload_id: str) -> None:
        _call(
            self._state,
            "abort_upload",
            key=key,
            is_write=True,
            action=lambda _: self.inner.abort_upload(key, upload_id),
        )

    def list_parts(self, key: ObjectKey, upload_id: str) -> tuple[PartReply, ...]:
        return _call(
            self._state, "list_parts", key=key, is_write=False, action=lambda _: self.inner.list_parts(key, upload_id)
        )

    def list_uploads(self, prefix: str) -> tuple[OpenUpload, ...]:
        fault = self._state.due("list_uploads", prefix)
        _raise_before(fault, "list_uploads", key=prefix, is_write=False)
        if fault is Fault.DROP_RESPONSE:
            raise EndpointUnreachable(f"list_uploads {prefix}: the answer was lost (scripted)")
        return self.inner.list_uploads(prefix)

    def _remember(self, key: ObjectKey) -> None:
        """What a lagging index would still say after the write that is about to happen."""
        try:
            stat: ObjectStat | None = self.inner.head(key)
        except ObjectAbsent:
            stat = None
        except DurastoreError:
            return
        with self._state.lock:
            self._state.before[key] = stat

    def _is_lost(self, key: ObjectKey) -> bool:
        with self._state.lock:
            return key in self._state.lost

    def _afflict(self, key: ObjectKey, fault: Fault | None) -> None:
        with self._state.lock:
            self._state.lost.discard(key)
            self._state.damage.pop(key, None)
        if fault is Fault.LOSE_OBJECT:
            self.lose(key)
        if fault in (Fault.ZERO_BLOCK, Fault.FLIP_BYTE):
            self.damage(key, fault)
