"""What the processes of a crash test do, and the look at what they left behind.

A life is a list of words, so that the same one can be lived in a forked child, under strace, or on a disk whose power
is cut. A sample is named `id#version`: a higher version is other content, made from another input, and supersedes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from durastore.clock import Stamp, SystemClock
from durastore.codec import decode
from durastore.dataset.dataset import Dataset
from durastore.store import opening
from durastore.store.opening import open_store
from durastore.store.store import Store
from durastore.testing.oracles import lost_samples
from durastore.upload.job import UploadLimits

SMALL, BIG = 1500, 30_000
RUN = {"model": "crash-test", "layers": [1]}
_HASTE = 20
_TIMEOUT_S = 60 * _HASTE
Tell = Callable[[str], None]

LIVES: dict[str, tuple[str, ...]] = {
    "groups": (
        *("put a/1#1", "put a/2#1", "put big/1#1", "put a/3#1", "many m/1#1 m/2#1 big/m#1 m/3#1", "flush"),
        *("put last/1#1", "drain", "put open/1#1"),
    ),
    "supersede": (
        *("many s/1#1 s/2#1 big/s#1", "flush", "put s/1#2", "put big/s#2", "flush", "put s/1#3", "drain"),
        *("put s/2#2", "put s/1#4", "drain"),
    ),
    "reclaim": (
        *("many r/1#1 r/2#1 r/3#1 r/4#1 r/5#1 r/6#1 r/7#1 r/8#1 r/9#1", "put big/r1#1", "put big/r2#1", "drain"),
        *("many t/1#1 t/2#1 t/3#1 t/4#1 t/5#1", "drain", "read r/1#1", "put t/6#1"),
    ),
    "parts": ("parts", "put big/p#1", "put p/1#1", "put big/q#1", "flush", "put big/r#1", "drain"),
    "reopen": (
        *("put o/1#1", "put o/2#1", "reopen", "put o/3#1", "flush", "put o/4#1", "put big/o#1", "reopen", "put o/5#1"),
        *("drain", "put o/6#1"),
    ),
    "siblings": ("put j/1#1", "flush", "put j/2#1", "drain", "put j/3#1"),
}
TWO_PROCESSES = ("put k/1#1", "put big/k#1", "second", "put n/1#1", "put n/2#1", "put big/n#1", "flush", "put n/3#1")


class HastyClock(SystemClock):
    """Real time for records, and a deadline or a pause of a second ends after 50 ms."""

    def monotonic(self) -> float:
        return super().monotonic() * _HASTE

    def wait(self, condition: Any, timeout_s: float) -> None:
        super().wait(condition, timeout_s / _HASTE)

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds / _HASTE, 0.002))


class RebootedClock(HastyClock):
    """The same machine after a power cut: no age recorded before can be told any more."""

    def stamp(self) -> Stamp:
        now = super().stamp()
        return Stamp(wall_ns=now.wall_ns, boottime_ns=now.boottime_ns, boot_id="the boot after the power cut")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a life is lived: two directories on two file systems."""

    bucket: Path
    spool: Path


@lru_cache(maxsize=512)
def tensors_of(key: str) -> dict[str, Any]:
    """Content that the versioned name alone decides; names with "big" are packs of their own."""
    seed = np.frombuffer(key.encode().ljust(16, b".")[:16], dtype=np.uint32)
    rng = np.random.default_rng(seed.tolist())
    size = BIG if "big" in key else SMALL
    return {"h": rng.integers(0, 255, size=(size // 4, 4), dtype=np.uint8), "n": np.arange(7, dtype=np.int64)}


def input_of(key: str) -> str:
    return f"{int(key.partition('#')[2]):032x}"


def without_torch() -> None:
    """Read samples as numpy arrays: importing torch would take ten times as long as a whole life."""
    vars(decode)["has_torch"] = lambda: False


def open_hasty(place: Place, clock: SystemClock | None = None) -> Store:
    return open_store(
        str(place.bucket),
        local=place.spool,
        run=RUN,
        reclaim="eager",
        settle_s=0.0,
        single_pack_bytes=20_000,
        pack_target_bytes=6_000,
        reserve_bytes=1,
        is_any_filesystem_allowed=True,  # the bucket is in memory: it outlives the process, and that is all it has to
        clock=clock or HastyClock(),
    )


def use_small_parts() -> None:
    """Send the big samples of this process in several parts."""
    vars(opening)["_LIMITS"] = UploadLimits(part_bytes=9_000, multipart_above=12_000)


def random_life(rng: random.Random, count: int) -> Iterator[str]:
    """Words of a life: mostly puts, some of them new versions, and everything that makes packs move on."""
    versions: dict[str, int] = {}

    def key(kind: str) -> str:
        old = [name for name in versions if name.startswith(kind)]
        name = rng.choice(old) if old and rng.random() < 0.15 else f"{kind}/{len(versions)}"
        versions[name] = versions.get(name, 0) + 1
        return f"{name}#{versions[name]}"

    for _ in range(count):
        word = rng.choices(("put", "big", "many", "flush", "drain", "reopen"), (8, 2, 3, 2, 2, 1))[0]
        if word == "many":
            group = {made.partition("#")[0]: made for made in (key(rng.choice("mn")) for _ in range(4))}
            yield "many " + " ".join(group.values())
        elif word in ("put", "big"):
            yield f"put {key('big' if word == 'big' else 'p')}"
        else:
            yield word


class Living:
    """Carries out a life, word by word, and tells each put before it begins (`?`) and once it was acknowledged."""

    def __init__(self, place: Place, tell: Tell) -> None:
        self._place = place
        self._tell = tell
        self._stores: list[Store] = []

    def live(self, life: Sequence[str]) -> None:
        if life[0] == "parts":
            use_small_parts()
        self._stores.append(open_hasty(self._place))
        for words in life:
            word, *keys = words.split()
            self._act(word, keys)
        while self._stores:
            self._stores.pop().abandon()

    def _act(self, word: str, keys: list[str]) -> None:
        store = self._stores[-1]
        if word in ("put", "many"):
            self._put(store, keys)
        elif word == "flush":
            store.flush(_TIMEOUT_S)
        elif word == "drain":
            store.drain(_TIMEOUT_S)
        elif word == "read":
            store.get(keys[0].partition("#")[0])
        elif word == "reopen":
            self._stores.pop().abandon()
            self._stores.append(open_hasty(self._place))
        elif word == "second":
            self._stores.append(open_hasty(self._place))

    def _put(self, store: Store, keys: list[str]) -> None:
        for key in keys:
            self._tell(f"?{key}")
        put_keys(store, keys)
        for key in keys:
            self._tell(key)


def put_keys(store: Store, keys: Sequence[str]) -> None:
    """One durable group."""
    names = {key: key.partition("#")[0] for key in keys}
    store.put_many(
        {names[key]: tensors_of(key) for key in keys}, input_digests={names[key]: input_of(key) for key in keys}
    )


def puts_of(life: Sequence[str]) -> list[list[str]]:
    """The groups that a life puts, in order."""
    return [words.split()[1:] for words in life if words.startswith(("put ", "many "))]


@dataclass(frozen=True, slots=True)
class Told:
    """What the killed processes said, in order: puts begun and puts acknowledged."""

    lines: tuple[str, ...]

    @property
    def acknowledged(self) -> list[str]:
        return [line for line in self.lines if line[:1] not in ("?", "!")]

    def allowed(self) -> dict[str, list[str]]:
        """Per acknowledged id the versions a reader may get: the last acknowledged, or one begun after it."""
        allowed: dict[str, list[str]] = {}
        for line in self.lines:
            name = line.removeprefix("?").partition("#")[0]
            if line.startswith("?") and name in allowed:
                allowed[name].append(line[1:])
            elif line[:1] not in ("?", "!"):
                allowed[name] = [line]
        return allowed


def _is_equal(found: Any, put: Any) -> bool:
    return bool(np.array_equal(np.asarray(found), put))


def _find_lost(allowed: dict[str, list[str]], read: Callable[[str], Any]) -> dict[str, str]:
    """Acknowledged samples of which no allowed version can be read."""
    lost: dict[str, str] = {}
    for name, versions in allowed.items():
        faults = [lost_samples({name: tensors_of(key)}, read, is_equal=_is_equal) for key in versions]
        if all(faults):
            lost |= faults[0]
    return lost


def examine(place: Place, told: Told, life: Sequence[str], *, is_rebooted: bool = False) -> dict[str, Any]:
    """Open again: what was acknowledged has to be there. Then do the same work again, as a resumed extractor does: in
    the end every sample has its last version, in the bucket alone, in one live row.
    """
    clock = RebootedClock() if is_rebooted else HastyClock()
    allowed = told.allowed()
    with open_hasty(place, clock) as store:
        lost = _find_lost(allowed, store.get)
        lost |= {name: "not in store" for name in allowed if name not in store}
        final = dict(_resumed(store, life, told))
        store.drain(_TIMEOUT_S)
        left = store.status()
    open_hasty(place, clock).close()  # INV-9: one more recovery finds nothing to do and loses nothing
    with ExitStack() as closing:
        dataset = closing.enter_context(Dataset(str(place.bucket)))
        lost |= _find_lost({name: [key] for name, key in final.items()}, dataset.__getitem__)
        lost |= {row.entry.sample_id.text: "two live rows" for row in dataset.duplicates}
    return {"lost": lost, "local_bytes": left.local_bytes, "quarantined": left.quarantined_bytes}


def _resumed(store: Store, life: Sequence[str], told: Told) -> Iterator[tuple[str, str]]:
    """Put what is not done yet; yields each id with the version that it has to have in the end."""
    done = set(told.acknowledged)
    for keys in puts_of(life):
        fresh = [key for key in keys if key not in done and not _is_held(store, key)]
        if fresh:
            put_keys(store, fresh)
        yield from ((key.partition("#")[0], key) for key in keys)


def _is_held(store: Store, key: str) -> bool:
    return store.contains(key.partition("#")[0], input_digest=input_of(key))
