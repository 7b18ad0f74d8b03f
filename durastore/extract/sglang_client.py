"""What is asked of an SGLang server, and whether it was started so that its hidden states are complete.

Duty: `/generate` for one prompt, and the server's own account of its flags. Must never take states for complete because
a server answered: a radix cache and chunked prefill leave rows out without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from durastore.clock import SYSTEM_CLOCK, Clock
from durastore.errors import ConfigError
from durastore.extract.json_server import LOOK_S, AskAgain, JsonServer, Unusable
from durastore.extract.layers import LayerPlan

__all__ = ["SglangClient", "find_cuts", "find_flag_faults", "layer_order"]

_AS_THEY_ARE = ("deepseek", "kimi")
"""Models for which EAGLE3's ids are states already, unless the first one is 1."""


class SglangClient:
    """One server. Thread-safe; usable without a run."""

    def __init__(self, url: str, *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.server = JsonServer(url, clock=clock)

    def flags(self) -> dict[str, Any]:
        """How the server was started. `AskAgain`, `Unusable`."""
        answer = self._first_of("/server_info", "/get_server_info")
        if answer is None:
            raise Unusable(f"{self.server.url} does not tell how it was started")
        inner = answer.get("server_args")
        return {**answer, **inner} if isinstance(inner, dict) else answer

    def model(self) -> str | None:
        """What it calls the model's folder; None from a server of another kind. `AskAgain`, `EngineFailed`."""
        answer = self._first_of("/model_info", "/get_model_info")
        return str(answer["model_path"]) if answer is not None and "model_path" in answer else None

    def _first_of(self, *paths: str) -> dict[str, Any] | None:
        """Newer servers have other paths than older ones."""
        for path in paths:
            try:
                answer = self.server.get(path, timeout_s=LOOK_S)
            except Unusable:
                continue
            if isinstance(answer, dict):
                return answer
        return None

    def generate(self, ids: Sequence[int], *, request: str, wants_states: bool, timeout_s: float) -> dict[str, Any]:
        """Run one prompt; what the answer says of it. `AskAgain`, `Unusable`, `EngineFailed`."""
        body = {
            "input_ids": list(ids),
            "rid": request,
            "extra_key": request,  # no other request's cached tokens
            "return_hidden_states": wants_states,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0},
        }
        answer = self.server.post("/generate", body, timeout_s=timeout_s)
        facts = answer.get("meta_info") if isinstance(answer, dict) else None
        if not isinstance(facts, dict):
            raise AskAgain("the answer has no meta_info")
        counted = facts.get("prompt_tokens")
        if counted is not None and counted != len(ids):
            raise AskAgain(f"the server counted {counted} tokens, and the sample has {len(ids)}")
        return facts


def find_cuts(flags: Mapping[str, Any]) -> list[str]:
    """Why a server that was started so leaves out rows of samples that are long, or begin as an earlier one did."""
    faults = []
    if not flags.get("disable_radix_cache"):
        faults.append("its radix cache leaves out rows: --disable-radix-cache")
    chunk = flags.get("chunked_prefill_size")
    if type(chunk) is not int or chunk > 0:
        over = f"over {chunk} tokens" if type(chunk) is int else "over some length"
        faults.append(f"of prompts {over} the last chunk's rows come only: --chunked-prefill-size -1")
    return faults


def find_flag_faults(flags: Mapping[str, Any], plan: LayerPlan, *, architecture: str) -> list[str]:
    """Why a server that was started so cannot give this run's states; none if it can."""
    faults = []
    has_full = flags.get("enable_return_hidden_states") or flags.get("return_hidden_states_mode") == "full"
    if not has_full and not flags.get("enable_return_aux_hidden_states"):
        faults.append("it returns no hidden states: --enable-return-hidden-states")
    faults += find_cuts(flags)
    try:
        layer_order(flags, plan, architecture=architecture)
    except ConfigError as exc:
        faults.append(exc.message)
    return faults


def layer_order(flags: Mapping[str, Any], plan: LayerPlan, *, architecture: str) -> list[int]:
    """Which slot of the server's states is each of the plan's, in its order. `ConfigError` if they are others."""
    if not flags.get("enable_return_aux_hidden_states"):
        if plan.indices != (plan.num_layers,) or not plan.is_last_normed:
            raise ConfigError(
                "it gives the last state after the final norm and no other: --layers last --normed-last here, or "
                "--enable-return-aux-hidden-states there"
            )
        return [0]
    ids, method = flags.get("return_aux_hidden_state_layer_ids"), str(flags.get("speculative_algorithm")).upper()
    if not isinstance(ids, list) or not ids or not all(type(each) is int for each in ids):
        raise ConfigError("its layers are not told: --return-aux-hidden-state-layer-ids")
    is_plain = method == "EAGLE3" and any(name in architecture.lower() for name in _AS_THEY_ARE) and ids[0] != 1
    states = [each if is_plain else each + 1 for each in ids]
    if sorted(states) != list(plan.indices):
        wanted = [each if is_plain else each - 1 for each in plan.indices]
        raise ConfigError(
            f"its layer ids {ids} are the states {sorted(states)}, and --layers has {list(plan.indices)}: "
            f"--return-aux-hidden-state-layer-ids {' '.join(map(str, wanted))}"
        )
    if plan.is_last_normed and plan.indices[-1] == plan.num_layers:
        raise ConfigError("a captured last state is one before the final norm: leave --normed-last out")
    return [states.index(each) for each in plan.indices]
