"""boto3 clients for one bucket on one endpoint, made per process.

Duty: the session (credentials, region, profile, CA bundle, endpoint) and clients on it with timeouts and with every
retry of botocore's own off. Credentials stay inside botocore; must never be kept, shown or logged here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from durastore.errors import CredentialsRefused
from durastore.objectstore.classify import NO_CREDENTIALS_HINT, classify
from durastore.objectstore.location import S3Options
from durastore.objectstore.media_type import name_media_type
from durastore.objectstore.per_process import PerProcess
from durastore.objectstore.s3_thrift import spare_repeated_work
from durastore.texts import checked_address

__all__ = [
    "OWNER_HEADER",
    "PAGE_BODY",
    "Connector",
    "expecting_owner",
    "refuse_blind_redirect",
    "shared_loader",
    "without_expect",
]

OWNER_HEADER = "x-amz-expected-bucket-owner"
"""Names the account that the bucket has to belong to."""
PAGE_BODY = "durastore-page"
"""Where a ListObjectsV2 answer carries the page's own bytes, unparsed."""
_POOL_SIZE = 128
_REDIRECTS = (301, 302, 307)
_KEPT_CLIENTS = 8


@dataclass(frozen=True, slots=True, repr=False)
class _Session:
    """A session of botocore's, its credentials' source, and the CA bundle it resolved (option, environment, profile).

    boto3's own would make the same client, and import its transfers and its documentation for it.
    """

    core: Any
    credentials: Any
    ca_bundle: str | None


class Connector:
    """Makes clients for a bucket. Thread-safe, and safe across fork: each process gets its own session."""

    def __init__(self, bucket: str, options: S3Options) -> None:
        self.bucket = bucket
        self.options = options
        self._session: PerProcess[_Session] = PerProcess(self._open_session)
        self._lock: PerProcess[Any] = PerProcess(threading.Lock)
        self._closed: PerProcess[list[Any]] = PerProcess(list)

    def __repr__(self) -> str:
        return f"Connector(s3://{self.bucket})"

    def connect(self) -> Any:
        """A boto3 client without any connection, the caller's alone until `give_back`. No request is sent."""
        session, closed = self._session.get(), self._closed.get()
        try:
            return closed.pop()
        except IndexError:
            pass
        style, known = self.options.addressing_style, self.options.endpoint_url
        if style == "auto" and known and self._needs_path(known):
            style = "path"  # told by the option, without a client made to ask it: that takes longer than a request
        with self._lock.get():  # a session must not make two clients at once
            client = self._open_client(session, style)
            if style == "auto" and self.is_path_style(client):
                client = self._open_client(session, "path")
        # the option was looked at; what botocore found elsewhere would be in errors, probe results and on the page
        checked_address(str(client.meta.endpoint_url), name="the endpoint of AWS_ENDPOINT_URL, or of the profile,")
        return client

    def give_back(self, client: Any) -> None:
        """Close `client`, one of `connect`'s, and keep it for the next: making one takes longer than most requests.

        Closing drops its pools, so whoever gets it next opens connections of his own (proofs rely on that); a request
        of its last user that is still under way ends on a pool that nobody takes from any more.
        """
        client.close()
        closed = self._closed.get()
        if len(closed) < _KEPT_CLIENTS:
            closed.append(client)

    def credentials(self) -> Any:
        """botocore's credentials object, which refreshes itself; ask it for values only where a request is signed."""
        return self._session.get().credentials

    def ca_bundle(self) -> str | None:
        return self._session.get().ca_bundle

    def endpoint_url(self) -> str:
        """The endpoint in use, resolved as botocore does it (option, environment, profile, region)."""
        if self.options.endpoint_url:
            return self.options.endpoint_url
        client = self.connect()
        try:
            return str(client.meta.endpoint_url)
        finally:
            self.give_back(client)

    def is_path_style(self, client: Any) -> bool:
        """True if the bucket goes into the path of a URL, not into its host."""
        style = self.options.addressing_style
        if style != "auto":
            return style == "path"
        return self._needs_path(str(client.meta.endpoint_url))

    def _needs_path(self, endpoint_url: str) -> bool:
        # Only AWS can be relied on to resolve bucket.host; and a dotted bucket name breaks its wildcard certificate.
        host = urlsplit(endpoint_url).hostname or ""
        return "." in self.bucket or not host.endswith((".amazonaws.com", ".amazonaws.com.cn"))

    def _open_session(self) -> _Session:
        import botocore.exceptions
        import botocore.session

        try:
            core = botocore.session.Session(profile=self.options.profile)
            core.register_component("data_loader", shared_loader(core.get_config_variable("data_path")))
            if self.options.region is not None:
                core.set_config_variable("region", self.options.region)  # providers of credentials ask for it as well
            credentials = core.get_credentials()
        except botocore.exceptions.BotoCoreError as exc:
            raise classify(exc, write=False, what="opening a session") from exc
        if credentials is None:
            raise CredentialsRefused("no AWS credentials found", hint=NO_CREDENTIALS_HINT)
        authority = self.options.ca_bundle or core.get_config_variable("ca_bundle")
        return _Session(core=core, credentials=credentials, ca_bundle=authority)

    def _open_client(self, session: _Session, style: str) -> Any:
        import botocore.config
        import botocore.exceptions

        options = self.options
        config = botocore.config.Config(
            connect_timeout=options.connect_timeout_s,
            read_timeout=options.read_timeout_s,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=_POOL_SIZE,
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": style, "payload_signing_enabled": False},  # type: ignore[arg-type]  # checked texts
            user_agent_extra="durastore",
        )
        try:
            client = session.core.create_client(
                "s3",
                endpoint_url=options.endpoint_url,
                config=config,
                verify=options.ca_bundle,
            )
        except (botocore.exceptions.BotoCoreError, ValueError) as exc:
            raise classify(exc, write=False, what="opening a client") from exc
        client.meta.events.register("before-sign.s3", without_expect)
        client.meta.events.register("before-sign.s3", name_media_type)
        client.meta.events.register("response-received.s3", refuse_blind_redirect)
        if options.bucket_owner is not None:
            client.meta.events.register("before-sign.s3", expecting_owner(options.bucket_owner))
        client.meta.events.register_first("before-parse.s3.ListObjectsV2", _keep_page)
        _parse_pages_once(client.meta.events)
        spare_repeated_work(client, session.core.get_component("data_loader"))
        return client


@lru_cache(maxsize=4)
def shared_loader(data_path: str | None) -> Any:
    """botocore's loader of its service descriptions, one for all sessions: each would parse the same megabytes of JSON
    again. It keeps what it parsed, and nobody writes to that.
    """
    import botocore.loaders

    return botocore.loaders.create_loader(data_path)


def without_expect(request: Any, **_: object) -> None:
    """No "Expect: 100-continue": a server that answers 100 late gets its final answer misread, and the call hangs; for
    one that never does, aiohttp would wait without end.
    """
    del request.headers["Expect"]


def expecting_owner(account: str) -> Callable[..., None]:
    """A handler of botocore's that names the account the bucket has to belong to in every request (case B170)."""

    def name_owner(request: Any, **_: object) -> None:
        request.headers[OWNER_HEADER] = account

    return name_owner


def refuse_blind_redirect(parsed_response: dict[str, Any] | None, event_name: str, **_: object) -> None:
    """A redirect that does not tell the region is an error at once: botocore would ask for it by HeadBucket, and where
    that is redirected as well, ask again until Python's stack is full.
    """
    from botocore.exceptions import ClientError

    answer = (parsed_response or {}).get("ResponseMetadata", {})
    if answer.get("HTTPStatusCode") not in _REDIRECTS or "x-amz-bucket-region" in answer.get("HTTPHeaders", {}):
        return
    assert parsed_response is not None
    if parsed_response.get("Error", {}).get("Region") is None:
        raise ClientError(parsed_response, event_name.rpartition(".")[2])  # type: ignore[arg-type]  # as botocore does


def _parse_pages_once(events: Any) -> None:
    """botocore parses every answer with status 200 once more, to find an error in it. Of a page of a listing that is
    half the cost, and `s3_list` refuses an answer that is no page anyway. Where there is no such handler, all stays.
    """
    from botocore import handlers

    look_for_error = getattr(handlers, "_handle_200_error", None)
    if look_for_error is None:
        return

    def look(operation_model: Any, **facts: Any) -> None:
        if operation_model.name != "ListObjectsV2":
            look_for_error(operation_model=operation_model, **facts)

    events.unregister("before-parse.s3.*", look_for_error)
    events.register_first("before-parse.s3.*", look)


def _keep_page(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Hand a page's bytes through and give botocore's slow parser an empty document; errors pass unchanged."""
    if response_dict["status_code"] == 200:
        customized_response_dict[PAGE_BODY] = response_dict["body"]
        response_dict["body"] = b"<ListBucketResult/>"
