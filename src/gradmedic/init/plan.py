"""All suggestions for a model: reading, choosing, and carrying them out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import overload

import torch

from gradmedic.errors import InputError
from gradmedic.init.schemes import SCHEMES, Suggestion


class Plan(Sequence[Suggestion]):
    """Suggestions in the order of the model's parameters; made by `suggest`. `print` shows them as a table.

    Attributes:
        traced: whether activations were seen in a run of the model, or guessed from the order of its modules.
    """

    def __init__(self, suggestions: Sequence[Suggestion], *, traced: bool) -> None:
        self._suggestions = tuple(suggestions)
        self.traced = traced

    def __len__(self) -> int:
        return len(self._suggestions)

    @overload
    def __getitem__(self, place: int) -> Suggestion: ...
    @overload
    def __getitem__(self, place: slice) -> Plan: ...
    def __getitem__(self, place: int | slice) -> Suggestion | Plan:
        if isinstance(place, slice):
            return Plan(self._suggestions[place], traced=self.traced)
        return self._suggestions[place]

    def __iter__(self) -> Iterator[Suggestion]:
        return iter(self._suggestions)

    @property
    def off(self) -> Plan:
        """Only what is off by more than 4 times."""
        return self._where(lambda each: each.off)

    def select(self, *patterns: str, scheme: str | None = None) -> Plan:
        """Return a plan for some of the parameters.

        Args:
            patterns: of names, with `*`; the name of a module stands for all below it. None: every parameter.
            scheme: only those of this scheme.

        Raises:
            InputError: a pattern that matches nothing, or an unknown scheme.

        Example:
            >>> import torch
            >>> from gradmedic.init import suggest
            >>> plan = suggest(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)))
            >>> [each.name for each in plan.select("0")]
            ['0.weight', '0.bias']
        """
        if scheme is not None and scheme not in SCHEMES:
            raise InputError(f"scheme: expected one of {', '.join(SCHEMES)}, got {scheme!r}")
        for pattern in patterns:
            if not any(_matches(each.name, pattern) for each in self):
                some = ", ".join(each.name for each in self._suggestions[:5])
                raise InputError(f"select: {pattern!r} matches no parameter; there are: {some}, …")
        return self._where(
            lambda each: (
                (not patterns or any(_matches(each.name, pattern) for pattern in patterns))
                and (scheme is None or each.scheme == scheme)
            )
        )

    def apply_(self, generator: torch.Generator | None = None) -> Plan:
        """Write initial values into the parameters of this plan, and into no others; return the plan.

        Do it before the optimizer has made a step: its moments would be those of other weights.

        Args:
            generator: where random numbers come from, on the parameters' device; torch's own by default.
        """
        for each in self:
            each.apply_(generator)
        return self

    def __repr__(self) -> str:
        return self.table()

    def table(self) -> str:
        """Return the plan as text, one line a parameter; `!` marks what is off."""
        rows = [("", "parameter", "scheme", "now", "target", "because")]
        rows += [(("!" if s.off else ""), s.name, s.scheme, _now(s), _target(s), s.reason) for s in self]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]).rstrip()
            for row in rows
        ]
        how = "seen in a run of the model" if self.traced else "by module order; pass a sample batch to see them"
        return "\n".join([*lines, f"activations: {how}; off: {len(self.off)} of {len(self)}"])

    def _where(self, wanted: Callable[[Suggestion], bool]) -> Plan:
        return Plan([each for each in self if wanted(each)], traced=self.traced)


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*")


def _now(each: Suggestion) -> str:
    if each.std == 0 and abs(each.measured_mean) > abs(each.measured_std):
        return f"mean {each.measured_mean:.3g}"
    return f"std {each.measured_std:.3g}"


def _target(each: Suggestion) -> str:
    if each.scheme == "keep":
        return ""
    return f"std {each.std:.3g}" if each.std else f"{each.mean:g}"
