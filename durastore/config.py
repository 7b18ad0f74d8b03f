"""Options of a store: what they are, what is allowed, and where they come from.

Duty: the frozen `StoreOptions`, and its resolution by precedence (explicit > `DURASTORE_*` environment > project file
> user file > default). Must never hold, read or accept a credential, and must never open a connection.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from urllib.parse import SplitResult, urlsplit

from durastore.errors import ConfigError

__all__ = [
    "PROJECT_FILE",
    "Place",
    "StoreOptions",
    "checked_address",
    "checked_ends",
    "find_place",
    "has_unseen_end",
    "option_names",
    "parse_size",
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
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(|B|KiB|MiB|GiB|TiB)", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "b": 1, "kib": 1 << 10, "mib": _MIB, "gib": _GIB, "tib": 1 << 40}


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


def _check_type(name: str, value: object, *, kind: str) -> None:
    if not _fits(kind, value):
        shown = type(value).__name__ if kind.startswith("str") else repr(value)  # a text may hold a secret
        raise ConfigError(f"option {name} takes {kind}, not {shown}")
    if isinstance(value, str) and (not value or value != value.strip() or not value.isprintable()):
        raise ConfigError(f"option {name} is empty, has blanks around it or unprintable characters")
    if name in _CHOICES and value is not None and value not in _CHOICES[name]:
        raise ConfigError(f"option {name} is {value!r}", hint=f"use one of {', '.join(_CHOICES[name])}")


def _check_numbers(options: StoreOptions) -> None:
    for name, kind in _KINDS.items():
        value = getattr(options, name)
        least = 0 if name in ("settle_s", "reserve_bytes", "low_watermark_bytes", "audit_share") else None
        if kind in ("int", "float") and (value < 0 if least == 0 else value <= 0):
            raise ConfigError(f"option {name} is {value}", hint="it has to be positive")
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


def checked_address(url: str, *, name: str) -> SplitResult:
    """The parts of `http(s)://host[:port][/path]`. `ConfigError` for anything else, which `name` tells of.

    It is never quoted: what is no address may hold a secret in any place (`user:secret@host`, `?token=`).
    """
    hint = "use http(s)://host[:port]"
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ConfigError(f"{name} is not a URL", hint=hint) from None  # the cause quotes parts of it
    if "@" in url:
        raise ConfigError(f"{name} carries credentials", hint=f"{hint}; credentials never go into a URL")
    if not is_usable or "?" in url or "#" in url or not url.isprintable() or " " in url:
        raise ConfigError(f"{name} is not usable", hint=hint)
    return parts


def has_unseen_end(text: str) -> bool:
    """Whether the first or last character is one that nobody sees."""
    return any(c.isspace() or unicodedata.category(c) in ("Cc", "Cf") for c in text[:1] + text[-1:])


def checked_ends(text: str, *, name: str) -> str:
    """`text`, unless it begins or ends with what nobody sees: a blank, a line end, a control or formatting character.

    With one the text would name another place than the one it looks like. It is not quoted: it may hold a secret. A
    name that really ends so can be given with a slash behind it.
    """
    if has_unseen_end(text):
        raise ConfigError(
            f"{name} begins or ends with a blank or a control character",
            hint="take it out (a blank inside the quotes, a line end?); a name that does end so takes a / after it",
        )
    return text


# --- where values come from ----------------------------------------------------------------------------------------


def _parse_bool(text: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    return known[text.lower()]


def parse_size(text: str) -> int:
    """Bytes of `1048576`, `64 MiB` or `1.5GiB`; ValueError on anything else."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"not a size: {text!r}")
    return (
        int(float(match[1]) * _SIZE_UNITS[match[2].lower()])
        if "." in match[1]
        else int(match[1]) * _SIZE_UNITS[match[2].lower()]
    )


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
        raise ConfigError(f"{origin}: {name} takes {kind}, not {value!r}") from exc


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
        # The decoder's message can quote the line, and that line could hold a secret.
        raise ConfigError(f"configuration file {path} is not valid TOML") from exc
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
    for origin, layer in _layers(environ, project_dir):
        values |= {name: _parse_value(name, value, origin=origin) for name, value in layer.items() if name in _KINDS}
    values |= {name: value for name, value in explicit.items() if value is not None}
    high = values.get("high_watermark_bytes")
    if isinstance(high, int) and "low_watermark_bytes" not in values:
        values["low_watermark_bytes"] = high * 3 // 4  # whoever moves only one mark keeps the default proportion
    return StoreOptions(**values)  # type: ignore[arg-type]  # __post_init__ checks every value's type


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
        return Place(text=checked_ends(explicit, name=f"--{name}"), origin=f"--{name}")
    for origin, layer in reversed(_layers(environ, project_dir)):
        value = layer.get(name)
        if value is not None:
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{origin}: {name} takes a text, not {value!r}")
            source = f"{ENV_PREFIX}{name.upper()}" if origin == "environment" else f"{name} of {origin}"
            return Place(text=checked_ends(value, name=source), origin=source)
    return None


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
