"""Guards of reclaiming files that durastore did not write, and of what reconcile may plan on, each taken out once."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["FOREIGN"]

_FOLDER_TESTS = "tests/unit/test_reconcile_folder.py"
_SPOOL_TESTS = "tests/unit/test_reconcile_spools.py"


def _folder(name: str, clause: str, *, file: str, before: str, after: str) -> Mutant:
    return Mutant(name=name, clause=clause, file=file, before=before, after=after, tests=(_FOLDER_TESTS,))


FOREIGN: tuple[Mutant, ...] = (
    _folder(
        "foreign-without-lease",
        "a lease, which fails while any writer has the file open",
        file="durastore/reclaim/foreign.py",
        before="            with leased(fd):\n",
        after="            if fd:\n",
    ),
    _folder(
        "foreign-changed-since",
        "dev, inode, size, mtime, ctime unchanged on the open fd",
        file="durastore/reclaim/foreign.py",
        before="                if identify(fd) != record.identity:\n",
        after="                if False:\n",
    ),
    _folder(
        "foreign-not-moved-back",
        "a mismatch is moved back or quarantined",
        file="durastore/reclaim/foreign.py",
        before="                _restore(place, private)\n            raise",
        after="                pass\n            raise",
    ),
    Mutant(
        name="foreign-folder-not-moved-back",
        clause="a mismatch is moved back or quarantined",
        file="durastore/reclaim/aside.py",
        before="        if is_file(going, private):\n",
        after="        if True:\n",
        tests=("tests/unit/test_reclaim_foreign.py",),
    ),
    _folder(
        "moved-files-forgotten",
        "a crash in between leaves the file in the private folder, and the next run takes it back",
        file="durastore/reconcile/run.py",
        before="    moved_back = take_back(place)\n",
        after="    moved_back: list[str] = []\n",
    ),
    _folder(
        "foreign-not-settled",
        "between the upload and the unlink lie at least settle_s",
        file="durastore/reconcile/folder_apply.py",
        before="    _wait_settled(session, listed)\n",
        after="    pass\n",
    ),
    _folder(
        "foreign-stop-not-heeded",
        "one mismatch stops all reclaiming",
        file="durastore/reconcile/folder_apply.py",
        before="    StopWatch.of(place.root.folder, url, s3=session.s3, clock=session.clock).heed(verifier)\n",
        after="    pass\n",
    ),
    _folder(
        "foreign-same-disk",
        "a copy in another failure domain",
        file="durastore/reconcile/folder_apply.py",
        before="        session.refuse_same_fate()\n",
        after="        pass\n",
    ),
    _folder(
        "name-and-size-for-content",
        "by digest, never by name and size",
        file="durastore/reconcile/contents.py",
        before="    is_same = _compute.equal(digests, listed).to_numpy(zero_copy_only=False)\n",
        after="    is_same = np.ones(len(at), dtype=np.bool_)\n",
    ),
    _folder(
        "contradicted-listing-planned-on",
        "a listing with a gap is not a listing",
        file="durastore/reconcile/folder.py",
        before="    can_plan = facts.bucket is not None and not facts.missing.present\n",
        after="    can_plan = facts.bucket is not None\n",
    ),
    _folder(
        "other-bucket-planned-on",
        "bucket marker as recorded",
        file="durastore/reconcile/folder_look.py",
        before="            check_known_id(first.store_id, store_id, what=str(folder.path), hint=FOLDER_HINT)\n",
        after="            pass\n",
    ),
    _folder(
        "no-marker-planned-on",
        "bucket marker as recorded",
        file="durastore/reconcile/folder_look.py",
        before="            check_store_id(listing.result(), store_id, what=str(folder.path), hint=FOLDER_HINT)\n",
        after="            pass\n",
    ),
    Mutant(
        name="held-spool-is-blind",
        clause="while a spool cannot be read no row is called LOST",
        file="durastore/reconcile/spools.py",
        before="        is_seen_whole=can_plan and not is_blind,\n",
        after="        is_seen_whole=can_plan,\n",
        tests=(_SPOOL_TESTS,),
    ),
    Mutant(
        name="rows-buried-unasked",
        clause="a row is taken out only where that was asked for",
        file="durastore/reconcile/burying.py",
        before="if not (is_asked and is_seen_whole and manifest.is_whole):",
        after="if not (is_seen_whole and manifest.is_whole):",
        tests=(_SPOOL_TESTS,),
    ),
    Mutant(
        name="an-outage-is-buried",
        clause="more than half of the packs at once are never taken for lost",
        file="durastore/reconcile/burying.py",
        before="if len(packs) > _FEW and 2 * len(packs) > count:",
        after="if False:",
        tests=(_SPOOL_TESTS,),
    ),
    Mutant(
        name="buried-after-a-second",
        clause="the two looks before rows are taken out lie a minute apart",
        file="durastore/reconcile/repair.py",
        before="apart_s=_BURY_LOOKS_APART_S",
        after="apart_s=1.0",
        tests=(_SPOOL_TESTS,),
    ),
)
