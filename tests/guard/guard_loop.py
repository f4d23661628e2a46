"""Guards driven by hand over norms and losses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gradmedic.clip.base import Decision, settle
from gradmedic.clip.spec import Spec
from gradmedic.clip.state import State
from gradmedic.clip.summary import GradientSummary


def run(
    guard: Any, norms: Sequence[float], losses: Sequence[float | None] | None = None
) -> list[tuple[Decision, State]]:
    """Decisions and states, step by step; a skipped step is settled as such."""
    state = guard.init(Spec.of_names(["w"]))
    found = []
    for step, norm in enumerate(norms):
        loss = None if losses is None else losses[step]
        decision, after = guard.update(GradientSummary.of_norms([norm], step=step, loss=loss), state)
        state = settle(guard, state, after, decision.skip)
        found.append((decision, state))
    return found


def skips(guard: Any, norms: Sequence[float], losses: Sequence[float | None] | None = None) -> list[bool]:
    return [_set(decision.skip) for decision, _ in run(guard, norms, losses)]


def halts(guard: Any, norms: Sequence[float], losses: Sequence[float | None] | None = None) -> list[bool]:
    return [any(bool(halt.flag) for halt in decision.halts) for decision, _ in run(guard, norms, losses)]


def reasons(decision: Decision) -> list[str]:
    return [reason.text for reason in decision.skips if bool(reason.flag)]


def _set(flag: torch.Tensor | None) -> bool:
    return flag is not None and bool(flag)
