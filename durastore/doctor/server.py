"""Whether the extraction server really gives complete hidden states.

Duty: the server stage: healthy, and one sample of the input asked twice. A server that is up and gives half of the
states is worse than one that is down. Must never store what it is given.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from durastore.doctor.processes import listeners_at, started_s
from durastore.doctor.request import Examination
from durastore.doctor.server_protocols import Answer, ExtractionServer, Ids, identify_server
from durastore.doctor.stages import Verdict
from durastore.doctor.staging import opened_door
from durastore.extract.sglang_client import find_cuts
from durastore.extract.state_faults import find_array_fault
from durastore.formats.staging import render_request

__all__ = ["find_answer_faults", "look_at_server"]

_PLAIN_IDS = tuple(range(1, 65))
"""Ids that every vocabulary has, where there is no input to take a sample from."""


def look_at_server(seen: Examination) -> Verdict:
    """Fails where an answer is not complete. `EndpointUnreachable`, `EngineFailed` pass."""
    url = seen.request.server
    if url is None:
        return Verdict.skipped("no server was named (--server)")
    server = identify_server(url, clock=seen.clock)
    seen.server_started_s = _started(url, seen)
    ids = seen.probe_ids if seen.probe_ids is not None else np.array(_PLAIN_IDS, dtype=np.int64)
    run = seen.described_run()
    faults: list[str] = []
    files: list[str] = []
    for number, answer in enumerate(_answers(server, ids, seen=seen), 1):
        files += [str(answer.file)] if answer.file is not None else []
        found = list(find_answer_faults(answer, ids, run=run))
        if found and number == 2 and not faults:
            found.append("the first answer was complete: a cache of prefixes is on, which cuts what was seen before")
        faults += [fault for fault in found if fault not in faults]
    faults += find_cuts(server.settings) if server.settings else []  # of longer samples than the one that was asked
    notes = [f"the look left {file} in staging" for file in files]
    facts: dict[str, Any] = {
        "url": server.client.server.url,
        "kind": server.kind,
        "model": server.model,
        "tokens": len(ids),
        "started_s": seen.server_started_s,
        "files": files,
    }
    summary = f"{server.kind} with {server.model}: a sample of {len(ids)} tokens, asked twice"
    summary += ", is not complete" if faults else ", is complete"
    verdict = Verdict.of_faults(faults, (), summary=summary, facts=facts)
    return Verdict(
        status=verdict.status,
        summary=summary,
        lines=(*verdict.lines, *notes),
        facts=facts,
        exit_code=verdict.exit_code,
    )


def _answers(server: ExtractionServer, ids: Ids, *, seen: Examination) -> Iterator[Answer]:
    """Two, to the same question. In a staging folder that durastore marked they are of a session of their own, which
    is over at once: whoever joins the folder next lets their files go.
    """
    staging = seen.request.staging
    with ExitStack() as left:
        door = opened_door(staging, clock=seen.clock) if staging is not None else None
        if door is not None:
            left.callback(door.close)
        for number in (1, 2):
            request = render_request(door.session, number) if door is not None else None
            yield server.ask(ids, staging=staging, clock=seen.clock, request=request)


def find_answer_faults(answer: Answer, ids: Ids, *, run: dict[str, Any]) -> Iterator[str]:
    """Why these are not all the states of this prompt, of the run's layers and size, each a number worth storing."""
    if answer.token_ids != tuple(ids.tolist()):
        yield f"the server saw {len(answer.token_ids)} tokens, or other ones, for {len(ids)} that were sent"
    states = answer.states
    if states.ndim not in (2, 3) or not states.size:
        yield f"the states have shape {list(states.shape)}"
        return
    if len(states) != len(ids):
        yield (
            f"{len(states)} rows of states for {len(ids)} tokens: a prefix cache, or a prefill in chunks of which only"
            " the last is returned"
        )
    layers, hidden = run.get("layers"), _hidden_size(run)
    count = len(layers) if isinstance(layers, list) else None
    width = int(np.prod(states.shape[1:]))
    if states.ndim == 3 and count is not None and states.shape[1] != count:
        yield f"{states.shape[1]} layers, and the run has {count}"
    elif count is not None and hidden is not None and width != count * hidden:
        yield f"{width} numbers a token, and the run has {count} layers of {hidden}"
    shaped = states if states.ndim == 3 else states.reshape(len(states), _parts(width, hidden), -1)
    names = layers if count == shaped.shape[1] and isinstance(layers, list) else list(range(shaped.shape[1]))
    fault = find_array_fault(shaped, names)
    if fault is not None:
        yield fault


def _parts(width: int, hidden: int | None) -> int:
    return width // hidden if hidden and width % hidden == 0 else 1


def _hidden_size(run: dict[str, Any]) -> int | None:
    model = run.get("model")
    size = model.get("hidden_size") if isinstance(model, dict) else None
    return size if isinstance(size, int) and size > 0 else None


def _started(url: str, seen: Examination) -> float | None:
    """When the process that listens there began, if it is one of this machine that can be seen."""
    if not _is_here(urlsplit(url).hostname or ""):
        return None
    now = seen.clock.stamp()
    found = [
        begun
        for pid in listeners_at(url)
        if (begun := started_s(pid, now_s=now.wall_ns / 1e9, boottime_s=now.boottime_ns / 1e9)) is not None
    ]
    return min(found, default=None)


def _is_here(host: str) -> bool:
    return host in ("localhost", "::1", socket.gethostname()) or host.startswith("127.")
