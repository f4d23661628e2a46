"""The harm gate: a symptom is a fault only where the run is seen to suffer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from gradmedic.diagnosis.loss import LossSummary

Reason = Literal["nonfinite", "diverged", "not_falling", ""]
#: What a loss does that shows no harm: too young to say, falls, or neither (solved already, or one of several).
Mood = Literal["early", "falling", "none"]
#: Phrases of a run without harm: they change as the run goes on.
CALM = frozenset({"@harm_early", "@harm_falling", "@harm_none"})
#: Phrases of a harm that may end in another one, NaN: what is said of a run that went on to that.
WORSE = {"@harm_diverged": "@harm_diverged_nonfinite", "@harm_raised": "@harm_raised_nonfinite"}


@dataclass(frozen=True, slots=True)
class Harm:
    """Whether the run is seen to suffer, and how.

    Attributes:
        reason: "nonfinite" (loss or gradients), "diverged", "not_falling", or "" for none.
        step: where it began; None when it cannot be said.
        mood: what the loss does where there is no harm.
    """

    reason: Reason = ""
    step: int | None = None
    mood: Mood = "none"

    def __bool__(self) -> bool:
        return bool(self.reason)

    @property
    def phrase(self) -> str:
        """Name of the phrase in the message files, as a parameter of a draft."""
        return f"@harm_{self.reason or self.mood}"


def assess(loss: LossSummary, *, nonfinite_step: int | None, several: bool) -> Harm:
    """Return the harm that a run shows.

    Args:
        loss: the loss so far.
        nonfinite_step: first step with non-finite gradients that was not a loss scaler's calibration.
        several: whether several optimizers each have a loss of their own (a GAN): their losses rise and fall against
            each other, so that only non-finite values and a loss that is orders of magnitude above its own start count
            as harm.
    """
    steps = [step for step in (loss.nonfinite_step, nonfinite_step) if step is not None]
    if steps:
        return Harm("nonfinite", min(steps))
    if several:
        return Harm("diverged", loss.exploded_step) if loss.exploded else Harm()
    if loss.diverged:
        return Harm("diverged", loss.diverged_step)
    if loss.falling is False and not _solved(loss):
        return Harm("not_falling", None)
    return Harm(mood="early" if loss.falling is None else ("falling" if loss.falling else "none"))


def at_the_end(harm: Harm, *, note: bool) -> str:
    """Return the phrase of a run that has ended, for a finding that was made before it showed harm.

    Args:
        harm: as the whole run shows it.
        note: whether the finding is a note only, which no later harm has made more of.
    """
    if harm and note:
        return "@harm_later"
    return harm.phrase if harm or harm.mood != "early" else "@harm_short"


def quotes(loss: LossSummary, harm: Harm) -> dict[str, Any]:
    """Return the numbers that phrases of harm quote, each with the steps that it is of.

    A reader holds them against the curve: what is a median is said to be one, and over which steps; what went up is
    quoted as it was measured, with its step.

    Args:
        loss: the loss so far.
        harm: as `assess` returns it.

    Returns:
        Placeholders of the message files.
    """
    first, last = loss.recent_steps or (None, None)
    return {
        "loss_first": loss.first,
        "loss_recent": loss.recent,
        "recent_from": first,
        "recent_to": last,
        "loss_high": loss.high,
        "high_step": loss.high_step,
        "harm_step": harm.step,
    }


def _solved(loss: LossSummary) -> bool:
    """Whether the loss was all but zero from the start (a converged model that trains on)."""
    return math.isfinite(loss.first) and abs(loss.first) < 1e-3 and abs(loss.recent) < 1e-3
