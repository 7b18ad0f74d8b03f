"""Options of a store: what they are, what is allowed, and where they come from.

Duty: the frozen `StoreOptions`, and its resolution by precedence (explicit > `DURASTORE_*` environment > project file
> user file > default). Must never hold, read or accept a credential, and must never open a connection.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType

from durastore.errors import ConfigError
from durastore.texts import checked_address, checked_ends, expanded, parse_size

__all__ = [
    "PROJECT_FILE",
    "Place",
    "StoreOptions",
    "find_place",
    "option_names",
    "resolve_options",
    "resolve_place",
    "user_file",
]

PROJECT_FILE = "durastore.toml"
ENV_PREFIX = "DURASTORE_"
_PLACES = ("bucket", "local")
_FREE_ENV = ("DURASTORE_TEST_",)  # for test runs only; nothing of the library reads them
_GIB = 1 << 30
_MIB = 1 << 20
_FILE_LIMIT_BYTES = 1 << 20
_CHOICES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "addressing_style": ("auto", "path", "virtual"),
        "compress": ("auto", "none", "planes-zstd", "planes-zstd-dense"),
        "checksum": ("auto", "crc64nvme", "md5", "none"),
        "transport": ("auto", "aio", "threads"),
        "reclaim": ("lazy", "eager", "never"),
        "probe": ("auto", "never"),
        "sse": ("AES256", "aws:kms", "aws:kms:dsse"),
    }
)
_CREDENTIAL = re.compile(
    r"access_?key|secret|session_?token|password|passwd|credential|api_?key|auth_?token", re.IGNORECASE
)
_ARCHIVES = ("GLACIER", "DEEP_ARCHIVE")
_HINT = "docs/operations/options.md tells what each option takes"
_TOML_PLACE = re.compile(r"at line (\d+), column (\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Everything a store can be told besides its bucket, its spool root and its run.

    Checks itself: `ConfigError` names the option. Credentials have no field: they come by the standard AWS chain only.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    addressing_style: str = "auto"
    ca_bundle: str | None = None
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    storage_class: str | None = None
    sse: str | None = None
    kms_key: str | None = None
    bucket_owner: str | None = None
    """AWS account (12 digits) that the bucket has to belong to; a bucket of another account is refused."""
    checksum: str = "auto"
    """Header sent with bodies: `crc64nvme`, `md5`, `none`; `auto`: crc64nvme unless a probe saw it refused."""
    compress: str = "auto"
    """Lossless: `auto` tensors of 32 KiB and more, `planes-zstd` all, each where it saves 3 %; `planes-zstd-dense` all,
    smaller and slower; `none`."""
    transport: str = "auto"
    machine_requests: int = 100
    """Upload requests under way at once, of all stores of this user on this machine together."""
    probe: str = "auto"
    """Whether an S3 endpoint is probed with lies, so that it may attest copies; `never`: every copy is read back."""
    reclaim: str = "lazy"
    settle_s: float = 600.0
    """Least age of an upload, and of the manifest segment that names it, before its local file may go."""
    high_watermark_bytes: int = 64 * _GIB
    """`put` blocks while the spool holds more."""
    low_watermark_bytes: int = 48 * _GIB
    """Lazy reclaim keeps this much locally, and less only while a `put` waits for disk space."""
    reserve_bytes: int = _GIB
    """Free space of the file system that `put` never uses."""
    stall_s: float = 600.0
    seal_age_s: float = 30.0
    pack_target_bytes: int = 64 * _MIB
    single_pack_bytes: int = 16 * _MIB
    """A sample of at least this size is a pack of its own."""
    is_any_filesystem_allowed: bool = False
    orphan_age_s: float = 604_800.0
    """Age, by the server's clock, at which an unfinished upload that no spool of this root goes on with is aborted."""
    audit_share: float = 0.01
    """Share of packs read back in full, whatever the endpoint attests; one of every reclaim batch is in any case."""
    reclaim_batch_packs: int = 64
    reclaim_batch_bytes: int = 8 * _GIB
    evidence_ttl_s: float = 86_400.0
    receipt_ttl_s: float = 60.0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), kind=_KINDS[field.name])
        _check_numbers(self)
        _check_remote(self)


# The annotation texts of StoreOptions ("str | None", "float", ...): what each option may hold.
_KINDS: Mapping[str, str] = MappingProxyType({f.name: str(f.type) for f in fields(StoreOptions)})


def option_names() -> tuple[str, ...]:
    """The names of all options, as they are spelt in a file or (upper-case, prefixed) in the environment."""
    return tuple(_KINDS)


def _fits(kind: str, value: object) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) and not isinstance(value, bool)
    if kind == "float":
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return isinstance(value, str) or (value is None and kind.endswith("| None"))


def _words_of(name: str) -> str:
    """What an option takes, for people."""
    if name.endswith("_bytes"):
        return 'bytes, or a size such as "64 GiB"'
    if name.endswith("_s"):
        return "seconds, as a number"
    kind = _KINDS[name].partition(" ")[0]
    return {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}[kind]


def _check_type(name: str, value: object, *, kind: str) -> None:
    if not _fits(kind, value):
        shown = type(value).__name__ if kind.startswith("str") else repr(value)  # a text may hold a secret
        raise ConfigError(f"option {name} takes {_words_of(name)}, not {shown}", hint=_HINT, option=name)
    if isinstance(value, str) and (not value or value != value.strip() or not value.isprintable()):
        raise ConfigError(f"option {name} is empty, has blanks around it or unprintable characters", option=name)
    if name in _CHOICES and value is not None and value not in _CHOICES[name]:
        raise ConfigError(f"option {name} is {value!r}", hint=f"use one of {', '.join(_CHOICES[name])}", option=name)


def _check_numbers(options: StoreOptions) -> None:
    for name, kind in _KINDS.items():
        value = getattr(options, name)
        least = 0 if name in ("settle_s", "reserve_bytes", "low_watermark_bytes", "audit_share") else None
        if kind in ("int", "float") and (value < 0 if least == 0 else value <= 0):
            raise ConfigError(f"option {name} is {value}", hint="it has to be positive", option=name)
    if options.low_watermark_bytes > options.high_watermark_bytes:
        raise ConfigError(
            f"low_watermark_bytes {options.low_watermark_bytes} is above"
            f" high_watermark_bytes {options.high_watermark_bytes}"
        )
    if options.audit_share > 1:
        raise ConfigError(f"audit_share is {options.audit_share}", hint="it is a share, from 0 to 1")


def _check_remote(options: StoreOptions) -> None:
    if options.endpoint_url is not None:
        checked_address(options.endpoint_url, name="endpoint_url")
    if options.kms_key is not None and (options.sse is None or not options.sse.startswith("aws:kms")):
        raise ConfigError("kms_key is set without sse", hint="set sse to aws:kms")
    if options.bucket_owner is not None and re.fullmatch(r"[0-9]{12}", options.bucket_owner) is None:
        raise ConfigError(f"bucket_owner is {options.bucket_owner!r}", hint="it is an AWS account id of 12 digits")
    if options.storage_class is not None and options.storage_class.upper() in _ARCHIVES:
        raise ConfigError(
            f"storage_class {options.storage_class} cannot be read back, so nothing could be verified",
            hint="move objects there later with a lifecycle rule",
        )


# --- where values come from ----------------------------------------------------------------------------------------


def _parse_bool(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return known[text.lower()]


_PARSERS: Mapping[str, Callable[[str], object]] = MappingProxyType({"bool": _parse_bool, "float": float})


def _parse_value(name: str, value: object, *, origin: str) -> object:
    """A text from the environment or a file as the option's own type; other values pass unchanged."""
    kind = _KINDS[name]
    if not isinstance(value, str) or kind.startswith("str"):
        return value
    parser = parse_size if name.endswith("_bytes") else _PARSERS.get(kind, int)
    try:
        return parser(value)
    except (ValueError, KeyError) as exc:
        raise ConfigError(f"{origin}: {name} takes {_words_of(name)}, not {value!r}", hint=_HINT) from exc


def _checked_names(values: Mapping[str, object], origin: str, *, allowed: tuple[str, ...]) -> None:
    for name in values:
        if _CREDENTIAL.search(name) and name not in allowed:
            raise ConfigError(
                f"{origin} holds a credential ({name})",
                hint="durastore takes credentials by the standard AWS chain only; take it out of there",
            )
        if name not in allowed:
            raise ConfigError(f"{origin}: unknown option {name!r}", hint=f"known: {', '.join(sorted(allowed))}")


def user_file(environ: Mapping[str, str]) -> Path | None:
    """Where the user's own file lies (`$XDG_CONFIG_HOME` or `~/.config`, then `durastore/config.toml`)."""
    base, home = environ.get("XDG_CONFIG_HOME"), environ.get("HOME")
    if base:
        return Path(base) / "durastore" / "config.toml"
    return Path(home) / ".config" / "durastore" / "config.toml" if home else None


def _load_file(path: Path) -> dict[str, object]:
    """The options of one file; an absent file holds none. `ConfigError` where it cannot be read or understood."""
    try:
        with path.open("rb") as stream:
            data = stream.read(_FILE_LIMIT_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as exc:
        raise ConfigError(f"configuration file {path} cannot be read: {exc.strerror}") from exc
    if len(data) > _FILE_LIMIT_BYTES:
        raise ConfigError(f"configuration file {path} is larger than 1 MiB")
    try:
        values: dict[str, object] = tomllib.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as exc:
        # The decoder's message can quote the line, and that line could hold a secret: of it only where it is.
        where = _TOML_PLACE.search(str(exc))
        at = f" (line {where[1]}, column {where[2]})" if where else ""
        raise ConfigError(f"configuration file {path} is not valid TOML{at}", hint='texts stand in "quotes"') from exc
    _checked_names(values, f"configuration file {path}", allowed=(*_KINDS, *_PLACES))
    return values


def _load_environment(environ: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {
        name[len(ENV_PREFIX) :].lower(): text
        for name, text in environ.items()
        if name.startswith(ENV_PREFIX) and not name.startswith(_FREE_ENV)
    }
    _checked_names(values, "environment (DURASTORE_*)", allowed=(*_KINDS, *_PLACES))
    return {name: value for name, value in values.items() if value != ""}


def _layers(environ: Mapping[str, str] | None, project_dir: Path | None) -> list[tuple[str, dict[str, object]]]:
    """The sources below explicit values, weakest first."""
    env = os.environ if environ is None else environ
    user = user_file(env)
    project = (project_dir or Path.cwd()) / PROJECT_FILE
    return [
        *([(f"configuration file {user}", _load_file(user))] if user is not None else []),
        (f"configuration file {project}", _load_file(project)),
        ("environment", _load_environment(env)),
    ]


def resolve_options(
    explicit: Mapping[str, object],
    *,
    environ: Mapping[str, str] | None = None,
    project_dir: Path | None = None,
) -> StoreOptions:
    """The options that hold: explicit > environment > project file > user file > default.

    An explicit None means "not given". Raises `ConfigError` for unknown names, wrong values and credentials. No effect
    on anything; safe to repeat.
    """
    _checked_names(explicit, "options", allowed=tuple(_KINDS))
    values: dict[str, object] = {}
    origins: dict[str, str] = {}
    for origin, layer in _layers(environ, project_dir):
        known = {name: value for name, value in layer.items() if name in _KINDS}
        values |= {name: _parse_value(name, value, origin=origin) for name, value in known.items()}
        origins |= dict.fromkeys(known, origin)
    values |= {name: value for name, value in explicit.items() if value is not None}
    high = values.get("high_watermark_bytes")
    if isinstance(high, int) and "low_watermark_bytes" not in values:
        values["low_watermark_bytes"] = high * 3 // 4  # whoever moves only one mark keeps the default proportion
    try:
        return StoreOptions(**values)  # type: ignore[arg-type]  # __post_init__ checks every value's type
    except ConfigError as exc:
        name = exc.facts.get("option")
        if name not in origins or explicit.get(name) is not None:
            raise
        raise ConfigError(f"{origins[name]}: {exc.message}", hint=exc.hint, **exc.facts) from exc


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A bucket or a spool root as it was written, and who wrote it."""

    text: str
    origin: str
    """Such as `DURASTORE_BUCKET`, or the file."""


def find_place(
    name: str,
    explicit: str | None,
    *,
    environ: Mapping[str, str] | None = None,
    project_dir: Path | None = None,
) -> Place | None:
    """`bucket` or `local` by the same precedence as the options; None where no source names it.

    `ConfigError`, which names the source, where it is empty, no text, or has blanks around it.
    """
    if name not in _PLACES:
        raise ConfigError(f"no place is called {name!r}", hint=f"known: {', '.join(_PLACES)}")
    if explicit is not None:
        if not explicit:
            raise ConfigError(f"--{name} is empty", hint="is it a variable of the shell that is not set?")
        return _place(name, explicit, origin=f"--{name}")
    for origin, layer in reversed(_layers(environ, project_dir)):
        value = layer.get(name)
        if value is not None:
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{origin}: {name} takes a text, not {value!r}")
            source = f"{ENV_PREFIX}{name.upper()}" if origin == "environment" else f"{name} of {origin}"
            return _place(name, value, origin=source)
    return None


def _place(name: str, text: str, *, origin: str) -> Place:
    checked = checked_ends(text, name=origin)
    if name == "local" and Path(checked).parts[:1] and Path(checked).parts[0].startswith("~"):
        checked = str(expanded(checked))
    return Place(text=checked, origin=origin)


def resolve_place(
    name: str,
    explicit: str | None,
    *,
    environ: Mapping[str, str] | None = None,
    project_dir: Path | None = None,
) -> str | None:
    """The text alone of `find_place`."""
    place = find_place(name, explicit, environ=environ, project_dir=project_dir)
    return place.text if place is not None else None
