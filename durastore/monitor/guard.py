"""Who may look at the page: whoever is on this machine, or knows the token.

Duty: stand before every request and socket. Without a token a request has to name this machine by a loopback name, so
that no other site's page can reach it through a name of its own; a socket has to come from the page itself. Nothing
that could change anything gets through.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

__all__ = ["COOKIE", "Guard", "is_loopback", "make_token"]

COOKIE = "durastore_monitor"
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]
_SOCKET_PATH = "/_nicegui_ws/"
_ASSETS = "/_nicegui"
"""Where the page's own files and its socket are."""
_PATHS = ("/", "/metrics", "/healthz", "/view.json", "/favicon.ico")


def make_token() -> str:
    """192 random bits, fit for a URL."""
    return secrets.token_urlsafe(24)


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine's own loopback, by its text alone."""
    name = host.strip("[]").lower()
    return name in ("localhost", "::1") or (name.startswith("127.") and name.replace(".", "").isdigit())


class Guard:
    """An ASGI application around another."""

    def __init__(self, app: App, *, token: str | None) -> None:
        """`token`: what everybody has to know; None where only this machine can reach the page."""
        self._app = app
        self._token = token

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope.get("headers", ())}
        status, text = self._judge(scope, headers)
        if status == 200:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif status == 303:
            await _answer(send, 303, location=text, cookie=f"{COOKIE}={self._token}; HttpOnly; SameSite=Lax; Path=/")
        else:
            await _answer(send, status, text=text)

    def _judge(self, scope: Mapping[str, Any], headers: Mapping[str, str]) -> tuple[int, str]:
        host = headers.get("host", "")
        if self._token is None and not is_loopback(_name_of(host)):
            return 403, "This page is for this machine only.\n"
        if "origin" in headers and urlsplit(headers["origin"]).netloc != host:
            return 403, "This page is not for other sites.\n"
        method, path = scope.get("method", "GET"), str(scope.get("path", ""))
        if method not in ("GET", "HEAD") and not path.startswith(_SOCKET_PATH):
            return 405, "There is nothing to change here.\n"
        if self._token is None or self._knows(headers):
            is_known = path in _PATHS or path.startswith(_ASSETS)
            return (200, "") if is_known else (404, f"Nothing is here: there are {' '.join(_PATHS)}\n")
        query = dict(parse_qsl(bytes(scope.get("query_string", b"")).decode("latin-1")))
        if scope["type"] == "http" and self._is_token(query.pop("token", "")):
            return 303, path + (f"?{urlencode(query)}" if query else "")
        return 401, "The token is missing: open the address that `durastore monitor` printed when it began.\n"

    def _knows(self, headers: Mapping[str, str]) -> bool:
        kind, _, told = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._is_token(told.strip()):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and self._is_token(cookie.value)

    def _is_token(self, told: str) -> bool:
        return hmac.compare_digest(told.encode(), (self._token or "").encode()) and bool(self._token)


def _name_of(host: str) -> str:
    """Without the port."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0]


async def _answer(send: Send, status: int, *, text: str = "", location: str = "", cookie: str = "") -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"cache-control", b"no-store")]
    headers += [(b"location", location.encode("latin-1"))] if location else []
    headers += [(b"set-cookie", cookie.encode("latin-1"))] if cookie else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": text.encode()})
