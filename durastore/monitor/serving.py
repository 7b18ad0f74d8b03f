"""`durastore monitor` as a server: the page, `/metrics`, `/healthz`, `/view.json`, on one address.

Duty: put page, guard and sampler together and serve until interrupted. Read-only.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import ConfigError
from durastore.monitor.guard import Guard, is_loopback, make_token
from durastore.monitor.sampler import Sampler

__all__ = ["Address", "serve"]

_EXTRA = "pip install 'durastore[monitor]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the page is to be had."""

    url: str
    token: str | None
    """Also part of `url`; None on loopback."""
    problems: tuple[str, ...] = ()
    """Of roots that cannot be looked at now: a path that was mistyped shows an empty page for ever."""


def serve(
    roots: Sequence[Path],
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    told: Callable[[Address], None],
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Serve until SIGINT or SIGTERM. `told` hears the address once, when it can be opened. `port` 0 takes a free one.

    `ConfigError` where the page's packages are missing or the address cannot be had.
    """
    try:
        import uvicorn

        from durastore.monitor.page import make_app
    except ImportError as exc:
        raise ConfigError(f"the page needs a package that is not installed: {exc.name}", hint=_EXTRA) from exc
    token = None if is_loopback(host) else make_token()
    listener = _listen(host, port)
    with listener, Sampler(roots, clock=clock) as sampler:
        sampler.look()
        sampler.start()
        app = make_app(sampler)
        config = uvicorn.Config(
            Guard(app, token=token),
            log_level="warning",
            access_log=False,  # it would write the token of the first request down
            server_header=False,
            timeout_graceful_shutdown=1,
            ws_ping_interval=20.0,
        )

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets=sockets)
                # Not before: until the server listens to signals, Python may lose a Ctrl-C in some finaliser.
                problems = tuple(banner.detail for banner in sampler.view.banners if banner.what == "root")
                told(replace(_address(listener, host, token=token), problems=problems))

        with suppress(KeyboardInterrupt):  # how it is meant to end; the server raises it again once it is down
            Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), port), family=family)
    except OSError as exc:
        raise ConfigError(
            f"{host} port {port} cannot be had: {exc.strerror or exc}", hint="give another --port; 0 takes a free one"
        ) from exc


def _address(listener: socket.socket, host: str, *, token: str | None) -> Address:
    shown = f"[{host.strip('[]')}]" if ":" in host else host
    query = f"?token={token}" if token is not None else ""
    return Address(url=f"http://{shown}:{listener.getsockname()[1]}/{query}", token=token)
