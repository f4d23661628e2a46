"""GM412 limit-exceeded: a pre-clip norm is above the limit that the user has set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase

import numpy as np
import numpy.typing as npt

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.layout import Layout
from gradmedic.diagnosis.view import View

_Places = npt.NDArray[np.int64]


class LimitExceeded:
    """The user's own alarm, at once; one finding for each limit that was broken.

    A pattern is matched against tensor names, each tensor by itself, and against module names, whose parameters
    (submodules included) have one joint norm.
    """

    code = "GM412"
    name = "limit-exceeded"
    kind: Kind = "invariant"
    needs = frozenset({"norm"})

    def __init__(self) -> None:
        self._groups: dict[str, tuple[Layout, list[tuple[str, float, str, _Places]]]] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at every step that is not a loss scaler's overflow."""
        if view.limits is None or view.final or (view.frame.skipped and view.frame.loss_scale is not None):
            return
        if isinstance(view.limits, Mapping):
            yield from self._patterns(view, view.limits)
        elif view.frame.grad_norm is not None and not view.frame.grad_norm <= view.limits:
            yield self._draft(view, view.frame.grad_norm, view.limits, (), "", "")

    def _patterns(self, view: View, limits: Mapping[str, float]) -> Iterator[Draft]:
        if not len(view.frame.tensors):
            return
        groups = self._resolve(view, limits)
        norms = view.frame.tensors.column("norm")
        bad = (view.frame.tensors.column("nan_count") > 0) | (view.frame.tensors.column("inf_count") > 0)
        squares = np.where(bad, np.inf, norms) ** 2
        for pattern, limit, label, places in groups:
            norm = math.sqrt(float(np.nansum(squares[places])))
            if norm > limit:
                yield self._draft(view, norm, limit, (label,), pattern, "pattern")

    def _resolve(self, view: View, limits: Mapping[str, float]) -> list[tuple[str, float, str, _Places]]:
        known = self._groups.get(view.frame.optimizer)
        if known is not None and known[0] is view.layout and known[0].names == view.frame.tensors.names:
            return known[1]
        names = view.frame.tensors.names
        modules = _modules(names)
        groups: list[tuple[str, float, str, _Places]] = []
        for pattern, limit in limits.items():
            for place, name in enumerate(names):
                if fnmatchcase(name, pattern):
                    groups.append((pattern, limit, name, np.array([place], dtype=np.int64)))
            for module, places in modules.items():
                if fnmatchcase(module, pattern):
                    groups.append((pattern, limit, module, np.array(places, dtype=np.int64)))
        self._groups[view.frame.optimizer] = (view.layout, groups)
        return groups

    def _draft(
        self, view: View, norm: float, limit: float, where: tuple[str, ...], pattern: str, variant: str
    ) -> Draft:
        return Draft(
            severity="warning",
            confidence=1.0,
            step=view.frame.step,
            where=where,
            evidence=(Evidence("pre-clip gradient norm", norm, limit, "L2"),),
            params={"norm": norm, "limit": limit, "pattern": pattern},
            variant=variant,
            key=pattern,
        )


def _modules(names: tuple[str, ...]) -> dict[str, list[int]]:
    """Return, for every module above these tensors, the places of its parameters."""
    modules: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        parts = name.split(".")[:-1]
        for depth in range(1, len(parts) + 1):
            modules.setdefault(".".join(parts[:depth]), []).append(place)
    return modules
