"""What an SGLang server's flags say about its hidden states: complete or not, and of which layers."""

from __future__ import annotations

from typing import Any

import pytest

from durastore.errors import ConfigError
from durastore.extract.layers import parse_layers
from durastore.extract.sglang_client import find_flag_faults, layer_order

GOOD: dict[str, Any] = {
    "enable_return_aux_hidden_states": True,
    "return_aux_hidden_state_layer_ids": [1, 14],
    "speculative_algorithm": "DFLASH",
    "disable_radix_cache": True,
    "chunked_prefill_size": -1,
}
PLAN = parse_layers("2,15", num_layers=64)


@pytest.mark.parametrize(
    "changes, said",
    [
        ({}, None),
        ({"disable_radix_cache": False}, "--disable-radix-cache"),
        ({"chunked_prefill_size": 8192}, "--chunked-prefill-size -1"),
        ({"chunked_prefill_size": None}, "--chunked-prefill-size -1"),
        ({"return_aux_hidden_state_layer_ids": None}, "layers are not told"),
        ({"return_aux_hidden_state_layer_ids": [2, 15]}, "--return-aux-hidden-state-layer-ids 1 14"),
        ({"enable_return_aux_hidden_states": False}, "returns no hidden states"),
        ({"enable_return_aux_hidden_states": False, "return_hidden_states_mode": "last"}, "returns no hidden states"),
        ({"enable_return_aux_hidden_states": False, "enable_return_hidden_states": True}, "and no other"),
    ],
)
def test_each_flag_that_costs_rows_or_layers_is_named(changes: dict[str, Any], said: str | None) -> None:
    faults = find_flag_faults({**GOOD, **changes}, PLAN, architecture="Qwen3ForCausalLM")
    assert (said is None and faults == []) or (said is not None and any(said in fault for fault in faults))


@pytest.mark.parametrize(
    "architecture, method, ids, states",
    [
        ("LlamaForCausalLM", "EAGLE3", [2, 30], [3, 31]),
        ("DeepseekV3ForCausalLM", "EAGLE3", [2, 30], [2, 30]),
        ("DeepseekV3ForCausalLM", "EAGLE3", [1, 30], [2, 31]),
        ("KimiK25ForConditionalGeneration", "EAGLE3", [2, 30, 58], [2, 30, 58]),
        ("DeepseekV3ForCausalLM", "DFLASH", [2, 30], [3, 31]),
        ("Qwen3ForCausalLM", "DSPARK", [30, 2], [31, 3]),
    ],
)
def test_layer_ids_become_states_as_each_family_counts(
    architecture: str, method: str, ids: list[int], states: list[int]
) -> None:
    plan = parse_layers(",".join(map(str, states)), num_layers=61)
    flags = {**GOOD, "speculative_algorithm": method, "return_aux_hidden_state_layer_ids": ids}
    order = layer_order(flags, plan, architecture=architecture)
    assert [states[at] for at in order] == sorted(states)
    with pytest.raises(ConfigError):
        layer_order(
            {**flags, "return_aux_hidden_state_layer_ids": [each + 2 for each in ids]}, plan, architecture=architecture
        )


def test_without_captured_layers_there_is_the_normed_last_one() -> None:
    flags = {"enable_return_hidden_states": True, "disable_radix_cache": True, "chunked_prefill_size": -1}
    assert layer_order(flags, parse_layers("last", num_layers=4, is_last_normed=True), architecture="x") == [0]
    for plan in (parse_layers("last", num_layers=4), parse_layers("3,last", num_layers=4, is_last_normed=True)):
        with pytest.raises(ConfigError, match="normed-last"):
            layer_order(flags, plan, architecture="x")
