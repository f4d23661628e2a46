"""From what a method did at each step to the few numbers that are compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gradmedic.clip.trial.by_layer import Groups, layer_effects
from gradmedic.clip.trial.candidates import Candidate, expression
from gradmedic.clip.trial.results import Outcome
from gradmedic.clip.trial.series import NormSeries
from gradmedic.clip.trial.simulate import Replay, replay
from gradmedic.clip.trial.step_length import step_ratio
from gradmedic.frame import Array


@dataclass(frozen=True)
class Ground:
    """What all methods are tried on.

    Attributes:
        series: the norms, S steps.
        usable: steps that count, bool [S].
        spikes: those of them that are spikes, bool [S].
        levels: above which a norm is a spike, [S].
        family, defaults: what is known of the optimizer.
        groups: module -> places of tensors.
    """

    series: NormSeries
    usable: Array
    spikes: Array
    levels: Array
    family: str
    defaults: Mapping[str, Any]
    groups: Groups


def try_out(candidate: Candidate, ground: Ground) -> Outcome:
    """Return what one method would have done."""
    series = ground.series
    done = replay(candidate.transform, series, by_tensor=candidate.by_tensor)
    counts = ground.usable[done.places]
    places = done.places[counts]
    scale, skipped = done.scale[counts], done.skipped[counts]
    touched = done.clipped[counts] | skipped
    spikes = ground.spikes[places]
    kept = series.norm[places] * scale
    caught = spikes & (skipped | (kept <= ground.levels[places]))
    calm = touched[~spikes]
    made = ~skipped
    return Outcome(
        method=candidate.method,
        expression=expression(candidate.method),
        note=candidate.note,
        transform=candidate.transform,
        adapts=candidate.adapts,
        steps=len(places),
        clipped_share=_mean(touched),
        calm_share=_mean(calm),
        skipped_share=_mean(skipped),
        mean_scale=_mean(scale * made, 1.0),
        step_ratio=_step_ratio(ground, series.norm[places][~spikes], scale[~spikes], skipped[~spikes]),
        spikes=int(spikes.sum()),
        caught=int(caught.sum()),
        layers=_layers(done, ground),
    )


def _step_ratio(ground: Ground, norms: Array, scale: Array, skipped: Array) -> float | None:
    # Spikes left out: one that is let through shortens Adam's steps for long, which would hide all else.
    return step_ratio(ground.family, ground.defaults, norms, scale, skipped)


def _layers(done: Replay, ground: Ground) -> dict[str, tuple[float, float]]:
    return layer_effects(done, ground.series, ground.usable, ground.groups)


def _mean(values: Array, empty: float = 0.0) -> float:
    return float(values.mean()) if len(values) else empty
