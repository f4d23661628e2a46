"""Names that are not known yet: the models of an unmodified script are looked for when its optimizer first steps.

What is measured before that goes by a placeholder; when the step has ended, each is replaced by the name.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping

import torch

from gradmedic.facts import LossFact
from gradmedic.probes.module_stats import ModuleSample
from gradmedic.probes.node_places import NameOf

#: No name of a module begins so.
_MARK = "\0"


class LateNames:
    """Hands out placeholders for parameters without a name, and names what was measured under them.

    Args:
        known: returns (parameter name, module name) of a watched parameter, or None.
        awaited: whether parameters may still be named later.
    """

    def __init__(self, known: NameOf, awaited: Callable[[], bool]) -> None:
        self._known = known
        self._awaited = awaited
        self._waiting: dict[int, tuple[str, weakref.ref[torch.Tensor]]] = {}
        self._nobodys: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()
        self._facts: list[LossFact] = []
        self._handed_out = 0

    def name_of(self, leaf: torch.Tensor) -> tuple[str, str] | None:
        """Return (parameter name, module name), both a placeholder where they may still come; None for a stranger."""
        found = self._known(leaf)
        if found is not None or not isinstance(leaf, torch.nn.Parameter) or not self._awaited():
            return found
        if self._nobodys.get(id(leaf)) is leaf:
            return None
        entry = self._waiting.get(id(leaf))
        if entry is None or entry[1]() is not leaf:
            entry = self._waiting[id(leaf)] = (f"{_MARK}{self._handed_out}", weakref.ref(leaf))
            self._handed_out += 1
        return entry[0], entry[0]

    def keep(self, facts: Iterable[LossFact]) -> None:
        """Hold losses whose module is a placeholder until `name_facts`; they are nameless meanwhile."""
        for fact in facts:
            if fact.module.startswith(_MARK):
                self._facts.append(fact)

    def name_facts(self) -> None:
        """Name the losses that were kept; those whose parameters nobody has are left without a name."""
        names = self._resolved()
        for fact in self._facts:
            found = names.get(fact.module)
            fact.module = "" if found is None else found[1] or found[0]
        self._facts.clear()

    def settle(self, samples: Iterable[ModuleSample]) -> Mapping[str, tuple[str, str]]:
        """Name samples, now that the step has ended, and forget all placeholders.

        Args:
            samples: of this step; those under a placeholder are changed in place.

        Returns:
            placeholder -> (parameter name, module name), of those that have got a name.
        """
        if not self._waiting:
            return {}
        self.name_facts()
        names = self._resolved()
        taken: dict[tuple[str, str, str, int], str] = {}
        for sample in samples:
            if sample.module.startswith(_MARK):
                _name(sample, names.get(sample.module, ("", "")), taken)
        for token, reference in self._waiting.values():
            leaf = reference()
            if leaf is not None and token not in names:
                self._nobodys[id(leaf)] = leaf
        self._waiting.clear()
        return names

    def _resolved(self) -> dict[str, tuple[str, str]]:
        found: dict[str, tuple[str, str]] = {}
        for token, reference in self._waiting.values():
            leaf = reference()
            name = None if leaf is None else self._known(leaf)
            if name is not None:
                found[token] = name
        return found


def _name(sample: ModuleSample, name: tuple[str, str], taken: dict[tuple[str, str, str, int], str]) -> None:
    """Name a sample; what went by two placeholders, and turns out to be of one module, is told apart by its call."""
    token, sample.module = sample.module, name[1] or name[0]
    if sample.leaf.startswith(_MARK):  # of the parameter itself, not of what follows it
        sample.leaf = name[0].rpartition(".")[2]
    while taken.setdefault((sample.module, sample.what, sample.leaf, sample.call), token) != token:
        sample.call += 1
