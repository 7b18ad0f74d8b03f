"""Replays incident 2 on two small disks, against a real S3 server: `sudo python examples/incident_full_disk/replay.py`.

`--real` takes SmolLM2-135M instead of a small random model. Needs root, for ext4 on loop devices.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from durastore.clock import SYSTEM_CLOCK
from durastore.demo.seaweed import SeaweedServer

MIB = 1 << 20
TOKENS, BEFORE, SAMPLES = 256, 8, 48
SURROUNDINGS = {
    "DURASTORE_RESERVE_BYTES": "65536",
    "DURASTORE_PACK_TARGET_BYTES": str(2 * MIB),
    "DURASTORE_SEAL_AGE_S": "1",
    "OMP_NUM_THREADS": "1",
}


@contextmanager
def disk(folder: Path, name: str, *, size_bytes: int) -> Iterator[Path]:
    """A mounted ext4 of its own."""
    image, mount = folder / f"{name}.img", folder / name
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mount], check=True)
    try:
        yield mount
    finally:
        subprocess.run(["umount", "--lazy", mount], check=False)


def fill(mount: Path) -> None:
    """Somebody else takes every block that is left; the killed process had given its ballast back."""
    fd = os.open(mount / "foreign", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        size, step = 0, 16 * MIB
        while step >= 1024:
            try:
                os.posix_fallocate(fd, size, step)
                size += step
            except OSError:
                step //= 2
    finally:
        os.close(fd)


def make_model(folder: Path) -> Path:
    """Two layers with random weights: the states are as large as those of a real one, and made at once."""
    import transformers

    transformers.set_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        vocab_size=512,
        max_position_embeddings=TOKENS,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def make_input(path: Path) -> Path:
    """Rows that are tokenised already, each of its own tokens."""
    rows = ({"id": f"s/{n:03d}", "input_ids": [(n * 7 + k * 3) % 500 for k in range(TOKENS)]} for n in range(SAMPLES))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


class Incident:
    """The parts of the story, each a step."""

    def __init__(self, work: Path, server: SeaweedServer, *, model: Path, layers: str = "0,1,last") -> None:
        self.server = server
        self.bucket = f"s3://{server.make_bucket()}/run"
        self.input = make_input(work / "train.jsonl")
        self.environment = {**os.environ, **server.environment(), **SURROUNDINGS}
        self.there = ["--endpoint-url", server.endpoint_url, "--addressing-style", "path"]
        self._words = ["extract", str(self.input), "--model", str(model), "--layers", layers, "--dtype", "float32"]
        self._words += ["--device", "cpu", "--batch-tokens", "1024", "--bucket", self.bucket, *self.there]

    def extract(self, root: Path, *more: str) -> list[str]:
        """The words of the extraction."""
        return [*self._words, "--local", str(root), *more]

    def doctor(self, root: Path, *more: str) -> list[str]:
        """The words of the doctor."""
        return ["doctor", "--local", str(root), "--bucket", self.bucket, *self.there, *more]

    def run_until_full(self, root: Path) -> int:
        """Start the extraction, let the bucket hang, wait until the disk is full, kill -9. How many it then held."""
        log = root / "extract.log"
        known = log.stat().st_size if log.exists() else 0
        command = [sys.executable, "-m", "durastore_cli.main", *self.extract(root)]
        with subprocess.Popen(command, env=self.environment, stderr=subprocess.DEVNULL) as process:
            try:
                _await(log, "the model is loaded", begin=known, process=process)
                os.kill(self.server.pid, signal.SIGSTOP)
                _await(log, "put waits", begin=known, process=process)
            finally:
                process.kill()
                os.kill(self.server.pid, signal.SIGCONT)
        return len(list(root.glob("w-*/packs/*")))


def _await(log: Path, text: str, *, begin: int, process: subprocess.Popen[bytes]) -> None:
    deadline = SYSTEM_CLOCK.monotonic() + 120
    while text not in (log.read_bytes()[begin:].decode() if log.exists() else ""):
        if process.poll() is not None or SYSTEM_CLOCK.monotonic() > deadline:
            raise SystemExit(f"the extraction ended, or never said {text!r}: {log}")
        SYSTEM_CLOCK.sleep(0.05)


def hurt(root: Path) -> tuple[Path, Path]:
    """What a power cut leaves of pages that were on their way: one pack is cut short, one ends in zeros."""
    packs = sorted(root.glob("w-*/packs/*.tar"), key=lambda path: path.stat().st_mtime_ns)
    cut, zeroed = packs[-3], packs[-4]
    os.truncate(cut, cut.stat().st_size * 2 // 3)
    size = zeroed.stat().st_size
    edge = size // 4096 * 4096 - 64 * 4096
    with zeroed.open("r+b") as file:
        file.seek(edge)
        file.write(bytes(size - edge))
    return cut, zeroed


def main(arguments: Sequence[str]) -> None:
    from durastore.demo.material import find_model

    work = Path(tempfile.mkdtemp(prefix="incident-"))
    model = find_model() if "--real" in arguments else make_model(work / "model")
    with (
        SeaweedServer.start(work / "server", log=work / "log") as server,
        disk(work, "old", size_bytes=64 * MIB) as old,
        disk(work, "new", size_bytes=256 * MIB) as new,
    ):
        incident = Incident(work, server, model=model)
        os.environ.update(incident.environment)
        _type("some of it went well", *incident.extract(old / "spool", "--limit", str(BEFORE)))
        _say("\n# the rest of it: the bucket hangs, the disk fills up, and the machine is killed")
        _say(f"$ durastore {' '.join(incident.extract(old / 'spool'))}")
        _say(f"killed with {incident.run_until_full(old / 'spool')} packs on the full disk")
        fill(old)
        cut, zeroed = hurt(old / "spool")
        _say(f"lost with the page cache: the end of {cut.name}, pages of {zeroed.name}")
        _type("everything has to go to another disk", "migrate", str(old / "spool"), str(new / "spool"))
        _type("is it safe to go on?", *incident.doctor(new / "spool"))
        _type("put the doubtful packs aside", *incident.doctor(new / "spool", "--apply"))
        _type("the same command; the spool is on the new disk", *incident.extract(new / "spool"))
        _type("and now?", *incident.doctor(new / "spool"))
        _say(f"\nthe logs stay in {work}")


def _type(why: str, *command: str) -> None:
    from durastore_cli.main import run

    _say(f"\n# {why}\n$ durastore {' '.join(command)}")
    _say(f"exit code {run(command)}")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
