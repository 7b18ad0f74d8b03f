"""A fork server that judges power cuts: makes the image a cut left, mounts it, recovers from it, looks.

Run as a program: `python power_look.py FOLDER SPOOL_PARENT`. Reads one JSON `Look` a line, prints one JSON line for
each. FOLDER holds images and mount points; needs root.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tests.crash.lives import Place, without_torch
from tests.crash.recording_disk import DiskFolder, PowerCut, write_image
from tests.crash.store_life import drop_place, examine_in_child, fresh_place, import_what_a_life_needs

_ON_DISK = ("open", "sealed", "uploaded", "verified", "manifested", "unknown")
_IN_BUCKET = ("uploaded", "verified", "manifested", "reclaimed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One cut: the disk it happened to, and what there was besides the disk at that moment."""

    disk: str
    bucket: str
    """The bucket's directory, which only ever grew: `names` are the files it had."""
    moment: int
    names: list[str]
    lines: list[str]
    kept_share: float
    piece_bytes: int
    seed: int


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    """The image's file system; mounting it replays its journal."""
    at.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(at)], check=True)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True)


def false_claims(place: Place) -> list[str]:
    """Journal rows that say more than disk and bucket hold (INV-2), read from a copy of the journal as it was left."""
    claims: list[str] = []
    for spool in sorted(place.spool.glob("w-*")):
        journals = sorted(spool.glob("journal-*.sqlite"), key=lambda path: int(path.stem.rpartition("-")[2]))
        if not journals:
            continue
        copy = place.bucket.parent / "journal-copy"
        copy.mkdir()
        for path in spool.glob(f"{journals[-1].name}*"):
            shutil.copy(path, copy)
        with closing(sqlite3.connect(copy / journals[-1].name)) as connection:
            has_packs = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'packs'").fetchone()[0]
            sql = "SELECT name, state, size_bytes, key, intent, manifested_in FROM packs"
            rows = connection.execute(sql).fetchall() if has_packs else []
        shutil.rmtree(copy)
        claims += [claim for row in rows for claim in _faults(place, spool, row)]
    return claims


def _faults(place: Place, spool: Path, row: tuple[Any, ...]) -> Iterator[str]:
    name, state, size_bytes, key, intent, segment = row
    path = spool / "packs" / name
    if state in _ON_DISK and intent is None and not (path.is_file() and path.stat().st_size >= (size_bytes or 0)):
        yield f"{name} is {state} with {size_bytes} bytes, and its file is not there or shorter"
    if state in _IN_BUCKET and not (place.bucket / key).is_file():
        yield f"{name} is {state}, and the bucket has no {key}"
    if segment is not None and not (place.bucket / segment).is_file():
        yield f"{name} is in segment {segment}, which the bucket does not have"


def copy_bucket(look: Look, *, to: Path) -> None:
    for name in look.names:
        target = to / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(look.bucket) / name, target)


def run_look(folder: Path, look: Look) -> dict[str, Any]:
    """Make, mount, recover, judge; nothing of it is left."""
    bucket, image = folder / "bucket", folder / "image"
    bucket.mkdir()
    copy_bucket(look, to=bucket)
    cut = PowerCut(moment=look.moment, kept_share=look.kept_share, piece_bytes=look.piece_bytes, seed=look.seed)
    dropped_bytes = write_image(DiskFolder(Path(look.disk)), cut, image=image)
    begun = [line[1:] for line in look.lines if line.startswith("?")]
    with mounted(image, folder / "mount") as mount:
        place = Place(bucket=bucket, spool=mount / "spool")
        claims = false_claims(place)
        result = examine_in_child(place, look.lines, life=[f"put {key}" for key in begun], is_rebooted=True)
    shutil.rmtree(bucket)
    image.unlink()
    result["faults"] += claims
    return result | {"dropped_bytes": dropped_bytes, "moment": look.moment, "kept_share": look.kept_share}


def main() -> None:
    folder, spools = Path(sys.argv[1]), Path(sys.argv[2])
    without_torch()
    rehearsal = fresh_place((folder, spools), "rehearsal")
    import_what_a_life_needs(rehearsal)
    drop_place(rehearsal)
    for number, line in zip(count(), sys.stdin, strict=False):
        own = folder / f"look-{number}"
        own.mkdir()
        sys.stdout.write(json.dumps(run_look(own, Look(**json.loads(line)))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
