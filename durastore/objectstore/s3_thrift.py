"""What botocore works out anew for each request, and what is the same for all requests of a client: worked out once.

Duty: `spare_repeated_work`, for a client of boto3 or of aiobotocore, which are built alike. Must never change what is
sent, save that the User-Agent stays what it is at the start; a part of botocore's that is not as it is known here is
left alone.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

__all__ = ["spare_repeated_work"]

_PER_REQUEST = ("Key", "Prefix", "CopySource")
"""Parameters of the endpoint's rules that differ from request to request."""


def spare_repeated_work(client: Any, loader: Any) -> None:
    """`loader`: botocore's own, which has the rules that the client was made of. Call it before the first request."""
    _resolve_endpoint_once(client, loader)
    _tell_agent_once(client)


def _resolve_endpoint_once(client: Any, loader: Any) -> None:
    """botocore keeps the endpoint that its rules came to, by their parameters. The object's key is one of these, though
    no rule asks for it: without it all requests but the first find what the first came to. Of a small request the
    rules are a quarter of the client's work.
    """
    parameters = getattr(getattr(client, "_ruleset_resolver", None), "_param_definitions", None)
    if not isinstance(parameters, dict) or not any(name in parameters for name in _PER_REQUEST):
        return
    for name in _unasked(loader):
        parameters.pop(name, None)


@lru_cache(maxsize=4)
def _unasked(loader: Any) -> tuple[str, ...]:
    """Of the parameters that differ from request to request those that no rule asks for. Its rules take milliseconds to
    look through, and are the same for all clients of a loader.
    """
    rules = repr(loader.load_service_model("s3", "endpoint-rule-set-1")["rules"])
    forms = {name: (f"'ref': '{name}'", f"{{{name}}}", f"{{{name}#") for name in _PER_REQUEST}
    return tuple(name for name, asked in forms.items() if not any(form in rules for form in asked))


def _tell_agent_once(client: Any) -> None:
    """botocore puts the User-Agent together twice for each request, the second time for the features that it used."""
    creator = getattr(client, "_user_agent_creator", None)
    if creator is not None and callable(getattr(creator, "to_string", None)):
        text = creator.to_string()
        creator.to_string = lambda: text
