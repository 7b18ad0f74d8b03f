"""Options that several commands share, and their values as the library takes them.

Duty: one spelling and one help text for each option. An option that was not given stays None, so that the library can
look at the environment, the project file and the user file (in this order) before its default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from durastore.config import PROJECT_FILE, find_place
from durastore.errors import ConfigError
from durastore.texts import parse_size

__all__ = [
    "REMOTE_NAMES",
    "SHARE",
    "SIZE",
    "bucket_option",
    "given",
    "local_option",
    "named_place",
    "needed_place",
    "remote_options",
]

F = TypeVar("F", bound=Callable[..., Any])


if TYPE_CHECKING:
    _IntType = click.ParamType[int]
    _FloatType = click.ParamType[float]
else:
    _IntType = _FloatType = click.ParamType  # older versions are not generic


class _Size(_IntType):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a size such as 1048576, 64MiB or 1.5GiB", param, ctx)


class _Share(_FloatType):
    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            share = -1.0
        if not text.endswith("%") and share >= 1:  # 1 % was meant at least as often as all of it
            all_of_it = ", or --deep for all" if param is not None and param.name == "share" else ", or 100% for all"
            self.fail(f"{value!r} is ambiguous: write {text}% for {text} in a hundred{all_of_it}", param, ctx)
        if not 0 < share <= 1:
            self.fail(f"{value!r} is not a share such as 1% or 0.01", param, ctx)
        return share


SIZE = _Size()
SHARE = _Share()


def bucket_option(command: F) -> F:
    """`--bucket`; a command that cannot do without one asks `needed_place`."""
    text = "s3://bucket/prefix, a bucket name, or a path. [env: DURASTORE_BUCKET]"
    return click.option("--bucket", metavar="URL", help=text)(command)


def local_option(command: F) -> F:
    """`--local`; as `bucket_option`."""
    text = "The spool root on a local disk. [env: DURASTORE_LOCAL]"
    return click.option("--local", metavar="DIR", help=text)(command)


REMOTE_NAMES = ("endpoint_url", "region", "profile", "addressing_style", "ca_bundle")
"""The options of `remote_options`, as the library calls them."""


def remote_options(command: F) -> F:
    """How to reach the bucket. Credentials come by the standard AWS chain only."""
    for option in reversed(
        (
            click.option("--endpoint-url", metavar="URL", help="S3 endpoint, if it is not AWS."),
            click.option("--region", metavar="NAME", help="Region."),
            click.option("--profile", metavar="NAME", help="Profile of the AWS configuration."),
            click.option("--addressing-style", type=click.Choice(["auto", "path", "virtual"]), help="Bucket in URLs."),
            click.option("--ca-bundle", metavar="FILE", help="Certificates to trust."),
        )
    ):
        command = option(command)
    return command


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given on the command line."""
    return {name: value for name, value in values.items() if value is not None}


def needed_place(name: str, value: str | None) -> str:
    """The bucket or spool root from the flag, the environment or a file; `ConfigError` where none names it."""
    place = named_place(name, value)
    if place is None:
        hint = f'give --{name}, set DURASTORE_{name.upper()}, or write {name} = "..." into {PROJECT_FILE}'
        raise ConfigError(f"--{name} is missing", hint=hint)
    return place


def named_place(name: str, value: str | None) -> str | None:
    """As `needed_place`; None where no source names it. `ConfigError` tells which source names what is no bucket."""
    place = find_place(name, value)
    if place is None:
        return None
    if name == "bucket":
        from durastore.objectstore.location import BucketUrl

        try:
            BucketUrl.parse(place.text)
        except ConfigError as exc:
            raise ConfigError(f"{place.origin}: {exc.message}", hint=exc.hint) from exc
    return place.text
