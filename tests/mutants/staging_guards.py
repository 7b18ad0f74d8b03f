"""Guards of the staging door, each taken out once."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

__all__ = ["STAGING"]

_DOOR, _ISSUER = "durastore/reclaim/staging.py", "durastore/verify/staged.py"


def _guard(name: str, clause: str, *, file: str, before: str, after: str) -> Mutant:
    tests = ("tests/unit/test_reclaim_staging.py",)
    return Mutant(name=name, clause=clause, file=file, before=before, after=after, tests=tests)


def _vllm(name: str, clause: str, *, file: str, before: str, after: str) -> Mutant:
    tests = ("tests/integration/test_vllm_engine.py",)
    return Mutant(name=name, clause=clause, file=f"durastore/extract/{file}", before=before, after=after, tests=tests)


def _watch(name: str, clause: str, *, file: str, before: str, after: str) -> Mutant:
    tests = ("tests/integration/test_watch_engine.py",)
    return Mutant(name=name, clause=clause, file=f"durastore/extract/{file}", before=before, after=after, tests=tests)


STAGING: tuple[Mutant, ...] = (
    _watch(
        "watch-old-entry",
        "nothing from stale entries",
        file="watch_engine.py",
        before="                if entry.oldest_ns < asked_ns - _CLOCK_SLACK_NS:\n",
        after="                if False:\n",
    ),
    _watch(
        "watch-dump-without-ids",
        "a dump without ids is refused",
        file="dumped.py",
        before="        if sample.tokens is None and not is_unverified_taken:\n",
        after="        if False:\n",
    ),
    _watch(
        "watch-old-marker",
        "an entry counts with a done-marker",
        file="dumped.py",
        before="    if newest_ns > mark.identity.mtime_ns:\n",
        after="    if False:\n",
    ),
    Mutant(
        name="sglang-order-of-another-server",
        clause="layers are those that the server itself names",
        file="durastore/extract/sglang_engine.py",
        before="            return self._orders[turn]\n",
        after="            return self._orders[-1]\n",
        tests=("tests/integration/test_extract_sglang.py",),
    ),
    Mutant(
        name="sglang-restart-not-noticed",
        clause="layers are those that the server itself names",
        file="durastore/extract/sglang_engine.py",
        before="                self._broken[turn] += 1\n",
        after="                pass\n",
        tests=("tests/integration/test_extract_sglang.py",),
    ),
    Mutant(
        name="sglang-restart-in-silence",
        clause="layers are those that the server itself names",
        file="durastore/extract/sglang_engine.py",
        before=" or silence_s > _STARTED_ANEW_S:\n",
        after=":\n",
        tests=("tests/integration/test_extract_sglang.py",),
    ),
    Mutant(
        name="sglang-answer-of-another-order",
        clause="layers are those that the server itself names",
        file="durastore/extract/sglang_engine.py",
        before="        if self._order_now(turn) != order:\n",
        after="        if False:\n",
        tests=("tests/integration/test_extract_sglang.py",),
    ),
    Mutant(
        name="watch-mixed-entry",
        clause="what does not belong together is not put together",
        file="durastore/extract/dumped.py",
        before="        if not files.has_still(file):\n",
        after="        if False:\n",
        tests=("tests/unit/test_extract_dumped.py",),
    ),
    _watch(
        "watch-without-marker",
        "an entry counts with a done-marker",
        file="dumped.py",
        before="        return next((each for each in beside if folder.folder.has(each)), None)\n",
        after="        return next((each for each in beside if folder.folder.has(each)), name)\n",
    ),
    _watch(
        "watch-dead-not-noted",
        "orphans of dead requests",
        file="watch_engine.py",
        before="            files.died(request, room)\n            raise\n",
        after="            raise\n",
    ),
    _watch(
        "watch-open-file",
        "fails while any writer has the file open",
        file="staged_files.py",
        before="            if is_quiet and has_writer(fd):\n",
        after="            if False:\n",
    ),
    _vllm(
        "vllm-lock-not-waited-for",
        "the answer comes before the write has ended",
        file="vllm_engine.py",
        before='        lock = self._locked(f"{name}{LOCK_SUFFIX}")\n',
        after="        lock = self._locked(name)\n",
    ),
    _vllm(
        "vllm-answer-for-other-tokens",
        "token ids compared",
        file="vllm_engine.py",
        before="        if said is not None and said != list(ids):\n",
        after="        if False:\n",
    ),
    _vllm(
        "vllm-old-file",
        "nothing from stale entries",
        file="vllm_engine.py",
        before="            if staged.identity.mtime_ns < asked_ns - _CLOCK_SLACK_NS:\n",
        after="            if False:\n",
    ),
    _vllm(
        "vllm-dead-not-noted",
        "orphans of dead requests",
        file="vllm_engine.py",
        before="            files.died(request, room)\n            raise\n",
        after="            raise\n",
    ),
    _vllm(
        "staging-room-without-limit",
        "requests in flight are limited by free /dev/shm",
        file="staging_room.py",
        before="            if self.reserved_bytes + size_bytes > self.limit_bytes:\n",
        after="            if False:\n",
    ),
    _vllm(
        "staging-room-not-asked-for",
        "requests in flight are limited by free /dev/shm",
        file="staging_room.py",
        before="            if self.unwritten_bytes + size_bytes > self._free_bytes():\n",
        after="            if False:\n",
    ),
    _guard(
        "staging-frees-its-own-marker",
        "the folder's own files never go",
        file=_DOOR,
        before="        if path.startswith(_OWN):",
        after="        if False:",
    ),
    _guard(
        "staging-not-durable",
        "this inode was parsed into a durable pack",
        file=_ISSUER,
        before="    if not holds():\n",
        after="    if False:\n",
    ),
    _guard(
        "staging-not-asked-before-the-move",
        "this inode was parsed into a durable pack",
        file=_DOOR,
        before="            if not holds():  # also before anything is moved\n",
        after="            if False:\n",
    ),
    _guard(
        "staging-other-inode",
        "this inode was parsed",
        file=_ISSUER,
        before="    if identify(fd) != staged.identity:\n",
        after="    if False:\n",
    ),
    _guard(
        "staging-not-moved-back",
        "a mismatch is moved back",
        file=_DOOR,
        before="                self._take_back(private, path)\n            raise",
        after="                pass\n            raise",
    ),
    _guard(
        "staging-lock-not-heeded",
        "a lease, which fails while any writer has the file open",
        file=_DOOR,
        before='        raise NotVerified(f"{parent.path / name}: its lock is held")\n',
        after="        return None\n",
    ),
    _guard(
        "staging-without-lease",
        "a lease, which fails while any writer has the file open",
        file=_DOOR,
        before="            held.enter_context(leased(fd))\n",
        after="",
    ),
    _guard(
        "staging-dead-not-asked",
        "orphans of dead requests",
        file=_ISSUER,
        before="    if not is_dead():\n",
        after="    if False:\n",
    ),
    _guard(
        "staging-living-session",
        "the kernel's flock proves an owner gone",
        file=_DOOR,
        before="            if not self.is_ended(session):\n",
        after="            if False:\n",
    ),
    _guard(
        "staging-unknown-session",
        "not knowing means keeping",
        file=_DOOR,
        before="    except (OSError, DiskFailed):\n        return False\n    if lock is None:",
        after="    except (OSError, DiskFailed):\n        return True\n    if lock is None:",
    ),
    _guard(
        "staging-folder-of-others",
        "the door works only in a folder with its marker",
        file=_DOOR,
        before="        if names and STAGING_MARKER_NAME not in names:  # else another process was faster\n",
        after="        if False:\n",
    ),
    _guard(
        "staging-folder-of-another-run",
        "a fresh staging directory per server start",
        file=_DOOR,
        before="    if found != record:\n",
        after="    if False:\n",
    ),
)
