"""`python -m tests.benchmarks.latency_proxy PORT SECONDS`: a TCP proxy that makes a local server a far one.

What the client sends is passed on `SECONDS` later, answers at once: each request takes that much longer, as over a line
with such a round trip; a connection's own round trip is not added. A process of its own, so that its CPU counts for
nobody. Prints the port it listens on, then for each line of its standard input the bytes of all answers so far, and
ends with it.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass

__all__ = ["main"]

_HOST = "127.0.0.1"
_READ_BYTES = 1 << 20


@dataclass(slots=True)
class _Tally:
    answered_bytes: int = 0


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, tally: _Tally) -> None:
    try:
        while data := await reader.read(_READ_BYTES):
            tally.answered_bytes += len(data)
            writer.write(data)
            await writer.drain()
    except OSError:
        pass  # a client that left in the middle of an answer
    finally:
        writer.close()


async def _pass_on_later(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, delay_s: float) -> None:
    """Requests keep their order: the loop calls what is due first, first."""
    loop = asyncio.get_running_loop()
    try:
        while data := await reader.read(_READ_BYTES):
            loop.call_later(delay_s, writer.write, data)
    except OSError:
        pass
    finally:
        loop.call_later(delay_s, writer.close)


def _tell(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def _serve(port: int, delay_s: float) -> None:
    tally = _Tally()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, there = await asyncio.open_connection(_HOST, port, limit=_READ_BYTES)
        async with asyncio.TaskGroup() as both:
            both.create_task(_pass_on_later(reader, there, delay_s=delay_s))
            both.create_task(_pass_on(back, writer, tally=tally))

    server = await asyncio.start_server(join, _HOST, 0, limit=_READ_BYTES)
    _tell(server.sockets[0].getsockname()[1])
    async with server:
        while await asyncio.to_thread(sys.stdin.readline):
            _tell(tally.answered_bytes)


def main() -> None:
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))


if __name__ == "__main__":
    main()
