"""The files of other tools, as tables: which tensors, in which order, under which name.

Pure. Duty: `arrange`, the exact inverse of what `adopt --as-samples` reads. What a tool's form fixes (the side of the
final norm, three layers, a loss mask) is required, never assumed. Must never change an element; the one exception is
the final norm itself, where the caller gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from durastore.adopt.foreign_formats.contents import Array
from durastore.errors import InvalidInput
from durastore.extract.conversion import RunShape
from durastore.integrations.states import SampleStates

__all__ = ["FORMS", "Form", "Norm", "Recipe", "arrange", "left_out", "plan_recipe"]

Norm = Callable[[Array], Array]
"""A model's final norm, for states [T, H]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How one tool keeps a sample."""

    name: str
    suffix: str
    is_numbered: bool
    """Files are called after the number of a row, not after an id."""
    tokens: str
    states: str
    is_flat: bool
    """States are [1, T, L*H], else [T, L, H]."""
    last: str | None = None
    """The key of the last layer's state, where it is a tensor by itself."""
    has_last_slot: bool | None = None
    """The last layer's state is the last slot of the states: always, or (None) where the run has it."""
    is_last_normed: bool = False
    has_mask: bool = False
    layer_count: int | None = None
    id_offset: int = 0
    """What is added to our index of a layer for the tool's own number of it."""

    @property
    def needs_last(self) -> bool:
        return self.last is not None or bool(self.has_last_slot)


FORMS: Mapping[str, Form] = {
    form.name: form
    for form in (
        Form(
            name="vllm",
            suffix=".safetensors",
            is_numbered=False,
            tokens="token_ids",
            states="hidden_states",
            is_flat=False,
        ),
        Form(
            name="speculators",
            suffix=".safetensors",
            is_numbered=True,
            tokens="token_ids",
            states="hidden_states",
            is_flat=False,
            has_last_slot=True,
        ),
        Form(
            name="specforge-eagle3",
            suffix=".ckpt",
            is_numbered=True,
            tokens="input_ids",
            states="aux_hidden_state",
            is_flat=True,
            last="hidden_state",
            has_last_slot=False,
            is_last_normed=True,
            has_mask=True,
            layer_count=3,
            id_offset=-1,
        ),
        Form(
            name="specforge-dflash",
            suffix=".ckpt",
            is_numbered=True,
            tokens="input_ids",
            states="hidden_states",
            is_flat=True,
            has_last_slot=False,
            has_mask=True,
            id_offset=-1,
        ),
        Form(
            name="specforge-dspark",
            suffix=".ckpt",
            is_numbered=True,
            tokens="input_ids",
            states="hidden_states",
            is_flat=True,
            last="target_last_hidden_states",
            has_last_slot=False,
            is_last_normed=True,
            has_mask=True,
            id_offset=-1,
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How the samples of one run become files of one form."""

    form: Form
    layers: tuple[int, ...]
    """The layers that go over, without the last one, ascending."""
    takes_last: bool
    is_mask_filled: bool

    def describe(self) -> str:
        """For people: our indices, and the tool's own numbers where they are others."""
        ours = ", ".join(map(str, self.layers))
        if not self.form.id_offset:
            return ours
        return f"{ours} (numbered {', '.join(str(k + self.form.id_offset) for k in self.layers)} there)"


def plan_recipe(
    form: Form, shape: RunShape, *, layers: tuple[int, ...] | None, has_norm: bool, is_mask_filled: bool
) -> Recipe:
    """What to do with samples of a run, or `InvalidInput` with the reason why they have no such form."""
    inner = tuple(sorted(layer for layer in shape.layers if layer != shape.num_layers))
    chosen = tuple(sorted(set(layers))) if layers is not None else inner
    absent = [layer for layer in chosen if layer not in inner]
    if absent:
        raise InvalidInput(
            f"layer {absent[0]} is not among the stored ones: {', '.join(map(str, inner))}",
            hint="the last layer's state goes over by itself, where the form has a place for it",
        )
    if form.layer_count is not None and len(chosen) != form.layer_count:
        raise InvalidInput(
            f"{form.name} files hold exactly {form.layer_count} layers beside the last one, these would be "
            f"{len(chosen)}: {', '.join(map(str, chosen))}",
            hint="choose with --layers",
        )
    takes_last = form.needs_last or (form.has_last_slot is None and bool(shape.has_last))
    if takes_last and shape.has_last:
        _check_norm(form, shape.is_last_normed, has_norm=has_norm)
    return Recipe(form=form, layers=chosen, takes_last=takes_last, is_mask_filled=is_mask_filled)


def arrange(states: SampleStates, recipe: Recipe, *, norm: Norm | None = None) -> dict[str, Array]:
    """The tensors of the file. `InvalidInput` where the sample lacks what the form needs."""
    form = recipe.form
    arrays: dict[str, Array] = {form.tokens: states.tokens}
    if form.has_mask:
        arrays["loss_mask"] = _mask(states, recipe)
    last = _last(states, recipe, norm=norm)
    picked = [states.layers.index(layer) for layer in recipe.layers]
    inner = states.states if len(picked) == len(states.layers) else states.states[:, picked]
    if last is not None and form.last is None:
        inner = np.concatenate([inner, last[:, None]], axis=1)
    inner = np.ascontiguousarray(inner)
    arrays[form.states] = inner.reshape(1, len(inner), -1) if form.is_flat else inner
    if last is not None and form.last is not None:
        arrays[form.last] = np.ascontiguousarray(last)[None]
    return arrays


def left_out(states: SampleStates, recipe: Recipe) -> tuple[str, ...]:
    """What of the sample the form has no place for, or was not chosen."""
    layers = [f"layer {layer}" for layer in states.layers if layer not in recipe.layers]
    last = ["last state"] if states.last is not None and not recipe.takes_last else []
    mask = ["loss_mask"] if states.loss_mask is not None and not recipe.form.has_mask else []
    return (*layers, *last, *mask, *states.others)


def _mask(states: SampleStates, recipe: Recipe) -> Array:
    if states.loss_mask is not None:
        return states.loss_mask
    if not recipe.is_mask_filled:
        raise InvalidInput("the sample has no loss_mask", hint="--mask-all: every token of such a sample counts")
    return np.ones_like(states.tokens)


def _last(states: SampleStates, recipe: Recipe, *, norm: Norm | None) -> Array | None:
    form = recipe.form
    if not recipe.takes_last:
        return None
    if states.last is None:
        raise InvalidInput(f"the state after the last layer is not stored, and {form.name} files need it")
    if _check_norm(form, states.is_last_normed, has_norm=norm is not None):
        assert norm is not None
        return norm(states.last)
    return states.last


def _check_norm(form: Form, said: bool | None, *, has_norm: bool) -> bool:
    """Whether the norm has to be applied. `InvalidInput` where it would have to be undone, is not known or not
    given.
    """
    if said is None:
        raise InvalidInput(
            f"whether the last state is the one before the final norm is not recorded, and {form.name} files fix it"
        )
    if said == form.is_last_normed:
        return False
    if said:
        raise InvalidInput(
            f"the last state is stored after the final norm, and {form.name} files hold it before",
            hint="a norm cannot be undone: extract without --normed-last",
        )
    if not has_norm:
        raise InvalidInput(
            f"the last state is stored before the final norm, and {form.name} files hold it after",
            hint="give --model: its final norm is applied",
        )
    return True
