"""One life in a real process, for tests that kill it from outside or cut its disk off.

Run as a program: `python life_process.py BUCKET SPOOL ACKS LIFE [--without-sync]`, LIFE being words in JSON. ACKS lies
on another file system than the spool: what is in it was acknowledged before whoever reads it there goes on.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from durastore.fsio.sys import SYS
from tests.crash.lives import Living, Place
from tests.crash.unlink_oracle import UnlinkOracle


def main() -> None:
    bucket, spool, acks, life, *flags = sys.argv[1:]
    if flags == ["--without-sync"]:
        for name in ("fsync", "fdatasync"):
            vars(SYS)[name] = lambda fd: None
    fd = os.open(acks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(line: str) -> None:
        os.write(fd, f"{line}\n".encode())

    UnlinkOracle(Path(bucket), report=lambda text: tell(f"!unlink {text}")).install()
    Living(Place(bucket=Path(bucket), spool=Path(spool)), tell).live(json.loads(life))


if __name__ == "__main__":
    main()
