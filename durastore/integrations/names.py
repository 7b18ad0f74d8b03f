"""What the files of an export are called.

Duty: sample id -> path below the folder, the same at every run, no two samples under one path. Must never make a path
that leaves the folder (ids have no such segment).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from durastore.errors import ConfigError, InvalidInput
from durastore.extract.inputs import read_all, survey_input
from durastore.formats.pack import member_name
from durastore.integrations.forms import Form
from durastore.model import SampleId

__all__ = ["Naming", "load_numbers"]

_NUMBER = re.compile(r"(?:^|\D)(\d{1,18})$", re.ASCII)
_GROUP = 2_000


@dataclass(slots=True, kw_only=True)
class Naming:
    """Names for one export. Used by one thread."""

    form: Form
    numbers: Mapping[str, int] | None = None
    """Row numbers by id, from the input."""
    is_by_id: bool = False
    """The number is the one at the end of the id."""
    _taken: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.form.is_numbered and self.numbers is None and not self.is_by_id:
            raise ConfigError(
                f"{self.form.name} files are called after the numbers of rows",
                hint="give --data, the input that was extracted, or --number-from-id where ids end in the number",
            )

    def path_of(self, sample_id: SampleId) -> str:
        """Its path. `InvalidInput` where it has no number, or another sample has the same."""
        if not self.form.is_numbered:
            return member_name(sample_id)
        number = self._number(sample_id)
        other = self._taken.setdefault(number, sample_id.text)
        if other != sample_id.text:
            raise InvalidInput(f"{sample_id.text!r} and {other!r} both are row {number}")
        if self.form.suffix == ".safetensors":
            return f"hs_{number}.safetensors"
        begin = number // _GROUP * _GROUP
        return f"rows_{begin}-{begin + _GROUP}/data_{number}{self.form.suffix}"

    def _number(self, sample_id: SampleId) -> int:
        if self.numbers is not None:
            number = self.numbers.get(sample_id.text)
            if number is None:
                raise InvalidInput(f"{sample_id.text!r} is no row of the input")
            return number
        found = _NUMBER.search(sample_id.text)
        if found is None:
            raise InvalidInput(f"{sample_id.text!r} does not end in a number", hint="give --data instead")
        return int(found[1])


def load_numbers(data: Path) -> dict[str, int]:
    """Each id's row, counted from 0 over all rows that are not blank: as `adopt --id-from row` counts. Raises like
    `extract` for an input that cannot be read.
    """
    survey = survey_input(data)
    return {row.sample_id.text: number for number, row in enumerate(read_all(survey)) if row.sample_id is not None}
