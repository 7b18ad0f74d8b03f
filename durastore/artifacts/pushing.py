"""A snapshot of a folder: all of its files in the bucket and proven, then the list that says so.

Order (INV-2): folder walked, twice -> what the bucket lacks is hashed, sent, read back and listed in a manifest segment
(as `adopt` does, by the same code) -> the list is published and read back. A crash at any point leaves no list, or a
whole one. A snapshot is of the moment of the walk, however long the sending takes: a file counts only if its bytes were
hashed while it was, by inode, size and times, what was seen then. Must never publish a list that lacks one.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from durastore.adopt.known import load_known
from durastore.adopt.ledger import HashedEntry, mark_of, save_ledger
from durastore.adopt.place import FolderPlace, hold_folder, opened_place, take_back
from durastore.adopt.sending import RowPublisher, Sender, hash_local
from durastore.artifacts.folder_state import (
    FileMark,
    FolderState,
    find_busy,
    find_unsettled,
    load_still,
    mark_of_identity,
)
from durastore.artifacts.keeping import free_older, freed_fact
from durastore.artifacts.lists import fetch_list, fetch_newest, publish_list
from durastore.artifacts.request import PushReport, PushRequest
from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import NotVerified, ObjectAbsent, RootMismatch, SpoolUnreadable, StoreMissing
from durastore.formats.artifact_list import ArtifactFile, ArtifactList, ArtifactName, ListRef, parse_list_key
from durastore.formats.spool_root import ROOT_MARKER_NAME
from durastore.fsio.identity import FileIdentity
from durastore.manifest.marker_store import ensure_marker, fetch_marker
from durastore.model import Digest, ObjectKey, SampleId
from durastore.objectstore.port import ObjectReader, ObjectStore
from durastore.observe.events import LOGGER, Observer
from durastore.reconcile.remote import FOLDER_HINT, check_known_id
from durastore.reconcile.run import refuse_overlap
from durastore.reconcile.session import Session, opened_session
from durastore.spool.records import FACT_STORE_ID, PackRecord
from durastore.verify.verifier import Verifier

__all__ = ["look", "push"]

_LOOKS_AT_ONCE = 8
LAST_SNAPSHOT = "last_snapshot"
"""The fact that names the list that this folder published last."""


def push(
    request: PushRequest,
    *,
    state: FolderState | None = None,
    objects: ObjectStore | None = None,
    clock: Clock = SYSTEM_CLOCK,
    observer: Observer | None = None,
) -> PushReport:
    """Take a snapshot: of the folder now, or as it was when `state` was looked at. Safe to repeat: content that the
    bucket has is not sent again, and no second list is written.

    `StoreMissing`, `RootMismatch`, `SpoolLocked`, `SameFailureDomain`, network and credential errors. What only this
    moment does not allow is in the report.
    """
    name = request.artifact  # refused before anything is touched
    below = request.reconcile_request()
    refuse_overlap(below)
    if (Path(os.path.realpath(request.folder)) / ROOT_MARKER_NAME).exists():
        raise RootMismatch(f"{request.folder} is a spool root: its packs are no files of others")
    with opened_session(below, objects=objects, clock=clock, observer=observer) as session:
        with _opened_folder(session) as place:
            return _Push(session, place, request=request, name=name).run(state)


def look(request: PushRequest) -> FolderState:
    """The folder as it is, for a push that comes later. `StoreMissing`, `RootMismatch` as for `push`."""
    with hold_folder(request.folder) as folder:
        return load_still(folder, exclude=request.exclude)


@contextmanager
def _opened_folder(session: Session) -> Iterator[FolderPlace]:
    request = session.request
    allowed = request.options.is_any_filesystem_allowed
    with hold_folder(request.local) as folder:
        with opened_place(folder, clock=session.clock, is_any_filesystem_allowed=allowed) as place:
            yield place


class _Push:
    """One push under way."""

    def __init__(self, session: Session, place: FolderPlace, *, request: PushRequest, name: ArtifactName) -> None:
        self._session = session
        self._place = place
        self._request = request
        self._name = name
        self._report = PushReport(name=name.text)
        self._by_digest: dict[tuple[Digest, int], ArtifactFile] = {}
        self._hashed: list[HashedEntry] = []

    def run(self, state: FolderState | None) -> PushReport:
        report = self._report
        if self._request.keep_last is not None:
            self._session.refuse_same_fate()  # told at the first push, not once there is something to free
        take_back(self._place)  # what an interrupted reclaim had moved belongs to the folder
        verifier = self._verifier()
        state = state if state is not None else load_still(self._place.folder, exclude=self._request.exclude)
        report.left_out = state.left_out
        now_ns = self._session.clock.now_ns()
        report.troubles |= {**state.troubles, **find_unsettled(state, now_ns=now_ns, quiet_s=self._request.quiet_s)}
        if report.troubles:
            return report
        newest = fetch_newest(self._session.objects, self._session.prefix, name=self._name)
        files = self._bring(state, newest[1] if newest is not None else None, verifier=verifier)
        if not report.troubles:
            self._publish(files, newest=newest)
        if report.snapshot is not None and self._request.keep_last is not None:
            self._free(verifier)
        return report

    def _verifier(self) -> Verifier:
        """The bucket is the one that this folder was sent to before, and stays it."""
        session, journal = self._session, self._place.spool.journal
        known, what = journal.get_fact(FACT_STORE_ID), str(self._place.folder.path)
        if known is not None and fetch_marker(session.objects, session.prefix) is None:  # none is made by a slip
            raise StoreMissing(f"there is no durastore at this prefix, and {what} was sent to one", hint=FOLDER_HINT)
        marker = ensure_marker(session.objects, session.prefix, run=None, clock=session.clock)
        check_known_id(marker.store_id, known, what=what, hint=FOLDER_HINT)
        journal.set_fact(FACT_STORE_ID, marker.store_id)
        verifier = session.verifier(marker.store_id)
        verifier.check_bucket()
        return verifier

    # --- bringing what lacks -------------------------------------------------------------------------------------

    def _bring(
        self, state: FolderState, newest: ArtifactList | None, *, verifier: Verifier
    ) -> dict[SampleId, ArtifactFile]:
        """Every file with the object that has its bytes, which was read back when it was sent and is still there."""
        known = newest.files if newest is not None else ()
        self._by_digest = {(file.digest, file.size_bytes): file for file in known}
        digests = self._known_digests(state)
        sizes = {path: state.files[path].size_bytes for path in digests}
        held = {path: self._held(path, digest, size_bytes=sizes[path]) for path, digest in digests.items()}
        found = {path: file for path, file in held.items() if file is not None}
        vanished = self._vanished(found)
        found = {path: file for path, file in found.items() if file.key not in vanished}
        lacking = [path for path in state.files if path not in found]
        first, repeats = self._without_repeats(lacking, digests)
        self._report.troubles |= find_busy(self._place.folder, found)
        sent = self._send(first, state, verifier=verifier)
        found |= sent
        by_digest = {(file.digest, file.size_bytes): file for file in sent.values()}
        for path, digest in repeats.items():
            original = by_digest.get((digest, state.files[path].size_bytes))
            if original is not None:
                found[path] = replace(original, path=path)
            elif not self._report.troubles:
                self._report.troubles[path.text] = "changed meanwhile"  # so did the one that was sent in its place
        save_ledger(self._place.root.folder, self._hashed, writer=self._place.spool.writer)
        return found

    def _held(self, path: SampleId, digest: Digest, *, size_bytes: int) -> ArtifactFile | None:
        known = self._by_digest.get((digest, size_bytes))
        return replace(known, path=path, is_local=True) if known is not None else None

    def _known_digests(self, state: FolderState) -> dict[SampleId, Digest]:
        """Digests of files that were hashed before as they are now, and of those that may be a copy of another one."""
        known = load_known(self._place.root.folder)
        digests, unknown = {}, []
        for path, mark in state.files.items():
            text = known.get(mark_of(path.text, _identity_of(mark)))
            if text is not None:
                digests[path] = Digest(text)
            else:
                unknown.append(path)
        sizes = Counter(state.files[path].size_bytes for path in state.files)
        held = {size for _, size in self._by_digest}
        alike = [path for path in unknown if (size := state.files[path].size_bytes) in held or sizes[size] > 1]
        with ThreadPoolExecutor(_LOOKS_AT_ONCE, "durastore-hash") as pool:
            marks = [state.files[path] for path in alike]
            hashed = dict(zip(alike, pool.map(self._hash, alike, marks), strict=True))
        return digests | {path: digest for path, digest in hashed.items() if digest is not None}

    def _hash(self, path: SampleId, mark: FileMark) -> Digest | None:
        """None: it cannot be read, or is another one by now, which sending it will tell."""
        try:
            file = hash_local(self._place.folder, path)
        except (NotVerified, SpoolUnreadable):
            return None
        if file.is_leased:
            self._hashed.append(HashedEntry(path=path.text, identity=file.identity, digest=file.digest))
        return file.digest if mark_of_identity(file.identity) == mark else None

    def _vanished(self, found: Mapping[SampleId, ArtifactFile]) -> set[ObjectKey]:
        """Keys that a look does not find as they were: such content is sent again, and no list trusts an old one."""
        keys = {file.key: file.size_bytes for file in found.values()}
        with closing(self._session.objects.fresh_reader()) as reader:
            with ThreadPoolExecutor(_LOOKS_AT_ONCE, "durastore-look") as pool:
                there = pool.map(partial(_is_there, reader), keys.items())
                return {key for key, is_there in zip(keys, there, strict=True) if not is_there}

    def _without_repeats(
        self, lacking: Sequence[SampleId], digests: Mapping[SampleId, Digest]
    ) -> tuple[list[SampleId], dict[SampleId, Digest]]:
        """What has to be sent, and what has the bytes of one of these."""
        first: list[SampleId] = []
        repeats: dict[SampleId, Digest] = {}
        seen: set[Digest] = set()
        for path in lacking:
            digest = digests.get(path)
            if digest is not None and digest in seen:
                repeats[path] = digest
                continue
            if digest is not None:
                seen.add(digest)
            first.append(path)
        return first, repeats

    def _send(
        self, paths: Sequence[SampleId], state: FolderState, *, verifier: Verifier
    ) -> dict[SampleId, ArtifactFile]:
        session, place, report = self._session, self._place, self._report
        if not paths:
            return {}
        publisher = RowPublisher(session.objects, session.prefix, spool=place.spool, check_bucket=verifier.check_bucket)
        sender = Sender(
            place.folder, session.objects, prefix=session.prefix, uploader=session.open_uploader(), clock=session.clock
        )
        wanted: dict[SampleId, list[ObjectKey]] = {path: [] for path in paths}
        sent = sender.send(
            wanted,
            publisher=publisher,
            journal=place.spool.journal,
            observer=session.observer,
            is_for_reclaim=False,  # what goes later is proven anew (`keeping`)
        )
        report.sent, report.sent_bytes = len(sent.listed), sent.sent_bytes
        report.troubles |= sent.kept
        self._hashed += [
            HashedEntry(path=pack.name, identity=pack.identity, digest=pack.digest)
            for pack in sent.listed
            if pack.identity is not None and pack.digest is not None and pack.name not in sent.unleased
        ]
        files = {}
        for pack in sent.listed:
            assert pack.identity is not None
            path = SampleId(pack.name)
            if mark_of_identity(pack.identity) == state.files[path]:
                files[path] = _file_of(pack)
            else:
                report.troubles[path.text] = "changed meanwhile"
        return files

    # --- the list ------------------------------------------------------------------------------------------------

    def _publish(self, files: Mapping[SampleId, ArtifactFile], *, newest: tuple[ListRef, ArtifactList] | None) -> None:
        session, report = self._session, self._report
        self._place.check()  # a disk that went away, or another one under its path
        carried = self._carried(files, newest[1] if newest is not None else None)
        content = ArtifactList(
            name=self._name,
            seq=newest[1].seq + 1 if newest is not None else 1,
            created_ns=session.clock.now_ns(),
            host=socket.gethostname(),
            files=tuple(sorted([*files.values(), *carried], key=lambda file: file.path)),
        )
        report.files, report.size_bytes, report.carried = len(content.files), content.size_bytes, len(carried)
        if newest is not None and _contents(newest[1]) == _contents(content):
            report.snapshot = newest[0]
        else:
            report.snapshot = publish_list(session.objects, content, area=session.prefix)
            report.is_new = True
        # INV-2: before anything that only it names is freed
        self._place.spool.journal.set_fact(LAST_SNAPSHOT, report.snapshot.key.text)
        if not report.is_new:
            return
        LOGGER.info("snapshot %s of %s: %d files", report.snapshot.short_digest, self._name, len(content.files))

    def _carried(self, files: Mapping[SampleId, ArtifactFile], newest: ArtifactList | None) -> list[ArtifactFile]:
        """What was freed here, after its proof, and is not here since: it still belongs to the folder. The newest
        snapshot may be another folder's of the same name, so this folder's own last one is asked as well.
        """
        journal = self._place.spool.journal
        found: dict[SampleId, ArtifactFile] = {}
        for content in (newest, self._own_last()):
            for file in content.files if content is not None else ():
                is_freed_here = journal.get_fact(freed_fact(file.path)) == file.digest.hex
                if file.path not in files and (is_freed_here or not file.is_local):
                    found.setdefault(file.path, replace(file, is_local=False))
        return list(found.values())

    def _own_last(self) -> ArtifactList | None:
        """The last snapshot of this folder, whatever its name was; None where there was none. What cannot be had of it
        ends the push: a list without what was freed would hide it.
        """
        text = self._place.spool.journal.get_fact(LAST_SNAPSHOT)
        ref = parse_list_key(self._session.prefix, ObjectKey(text)) if text is not None else None
        return fetch_list(self._session.objects, ref, area=self._session.prefix) if ref is not None else None

    def _free(self, verifier: Verifier) -> None:
        session, report = self._session, self._report
        newest = fetch_newest(session.objects, session.prefix, name=self._name)
        if newest is None or newest[0] != report.snapshot or self._request.keep_last is None:
            report.kept["."] = "another snapshot came meanwhile: nothing is freed"
            return
        result = free_older(
            session, self._place, files=newest[1].files, keep_last=self._request.keep_last, verifier=verifier
        )
        report.freed, report.freed_bytes, report.kept = result.files, result.bytes_freed, result.kept


def _contents(content: ArtifactList) -> list[tuple[SampleId, Digest, int]]:
    return [(file.path, file.digest, file.size_bytes) for file in content.files]


def _file_of(pack: PackRecord) -> ArtifactFile:
    assert pack.key is not None
    assert pack.digest is not None
    assert pack.manifested_in is not None
    return ArtifactFile(
        path=SampleId(pack.name),
        size_bytes=pack.size_bytes or 0,
        digest=pack.digest,
        key=pack.key,
        segment=pack.manifested_in,
    )


def _is_there(reader: ObjectReader, wanted: tuple[ObjectKey, int]) -> bool:
    key, size_bytes = wanted
    try:
        return reader.head(key).size_bytes == size_bytes
    except ObjectAbsent:
        return False


def _identity_of(mark: FileMark) -> FileIdentity:
    """As the list of hashed files takes it; the device is no part of that."""
    return FileIdentity(
        dev=0, inode=mark.inode, size_bytes=mark.size_bytes, mtime_ns=mark.mtime_ns, ctime_ns=mark.ctime_ns
    )
