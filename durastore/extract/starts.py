"""How an extraction was started, so that a person can go on after a crash.

Duty: the value: the command, what of the environment decides where it goes, and how its input becomes samples. No I/O;
`job_book` keeps it. Must never hold a credential.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from durastore.clock import Stamp
from durastore.config import option_names
from durastore.errors import IntegrityError
from durastore.model import parse_json, render_json

__all__ = ["Start", "environment_of", "without_user_info"]

_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
_OURS = frozenset(f"DURASTORE_{name.upper()}" for name in (*option_names(), "bucket", "local"))
_OTHERS = frozenset(
    {
        "AWS_CONFIG_FILE",
        "AWS_DEFAULT_REGION",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_SHARED_CREDENTIALS_FILE",
        "CUDA_VISIBLE_DEVICES",
        "HF_HOME",
        "RANK",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        "WORLD_SIZE",
    }
)
_TEXTS = ("folder", "run", "bucket", "local", "input", "model", "shard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of an extraction."""

    stamp: Stamp
    pid: int
    command: tuple[str, ...]
    """As it was typed; empty where a program called the library. User information in URLs is left out."""
    folder: str
    """The working directory: relative paths of the command are relative to it."""
    environment: Mapping[str, str] = field(default_factory=dict)
    run: str
    """The run's digest."""
    bucket: str
    local: str
    input: str
    model: str
    is_remote_code_trusted: bool = False
    max_tokens: int | None
    """The length rule, with the model's own limit where none was given."""
    is_truncated: bool = False
    limit: int | None = None
    shard: str = "0/1"

    @property
    def input_path(self) -> Path:
        return Path(self.folder, self.input)

    @property
    def local_path(self) -> Path:
        return Path(self.folder, self.local)

    @property
    def model_name(self) -> str:
        """A path that was relative is not any more; a hub name stays."""
        path = Path(self.folder, self.model)
        return str(path) if path.exists() else self.model

    def render(self) -> str:
        """As JSON; inverse of `parse`."""
        facts: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__ if name != "stamp"}
        return render_json({**facts, "stamp": self.stamp.render(), "command": list(self.command)})

    @classmethod
    def parse(cls, text: str) -> Start:
        """Unknown names are ignored. `IntegrityError` on anything else."""
        facts = parse_json(text.encode(), what="a start of an extraction")
        try:
            known = {name: facts[name] for name in cls.__slots__ if name in facts}
            known |= {"stamp": Stamp.parse(str(facts["stamp"])), "command": tuple(map(str, facts["command"]))}
            known |= {name: str(known[name]) for name in _TEXTS if name in known}
            return cls(**known)
        except (TypeError, KeyError, ValueError) as exc:
            raise IntegrityError(f"a start of an extraction cannot be read: {exc}") from exc


def environment_of(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What of the environment decides where an extraction goes and what it takes: names on a list, never a secret."""
    return {name: without_user_info(environ[name]) for name in sorted((_OURS | _OTHERS) & environ.keys())}


def without_user_info(text: str) -> str:
    """The text without the user and password of any URL in it; bytes that are no text are escaped."""
    return _USER_INFO.sub("", text.encode("utf-8", "backslashreplace").decode())
