"""What a named mutant is: one guard of the design, taken out or turned round, and the tests that have to notice."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Mutant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """`before` occurs exactly once in `file`; with `after` in its place at least one of `tests` fails."""

    name: str
    clause: str
    """The condition of DESIGN 7 (or 6, 4) that is gone, in its words."""
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    """Test files or test functions, as pytest takes them."""

    def apply(self, text: str) -> str:
        """The mutated source. ValueError if `before` is not there exactly once: then the mutant has rotted."""
        if text.count(self.before) != 1:
            raise ValueError(f"mutant {self.name}: its text occurs {text.count(self.before)} times in {self.file}")
        return text.replace(self.before, self.after)
