"""Finds what must not be in the repository's text: secrets, and paths of somebody's machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

PATTERNS = {
    "access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "secret key": re.compile(
        r"(?i)(?:secret|password|token)[\w.\-]*[\"']?\s*[:=]\s*[\"'][A-Za-z0-9/+]{32,}={0,2}[\"']"
    ),
    "private key": re.compile(r"-----BEGIN (?:[A-Z]+ )?PRIVATE KEY"),
    "path of a machine": re.compile(r"(?<![\w.}\])])/(?:home|root|Users|work|workspace|opt|private)/[\w.-]+"),
    "token": re.compile(r"\b(?:ghp|gho|github_pat|hf|xox[bp])_[A-Za-z0-9]{20,}"),
}


def repository_files(root: Path) -> list[Path]:
    """What git has or would take: tracked files, and new ones that are not ignored."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    names = sorted({name for name in done.stdout.decode().split("\0") if name})
    return [root / name for name in names if (root / name).is_file()]


def find_in_text(text: str) -> list[str]:
    """Which kinds of forbidden text occur, each with the line."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        found += [f"line {number}: {kind}" for kind, pattern in PATTERNS.items() if pattern.search(line)]
    return found
