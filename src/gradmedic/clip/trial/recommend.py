"""Which method is recommended, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradmedic.clip.trial.candidates import LEVELS
from gradmedic.clip.trial.results import Note, Outcome, RateLink

#: Rank correlation of norm and learning rate from which on a fixed threshold does not fit the whole schedule, if the
#: level moves by a factor of this at the same time.
CORRELATED, MOVES = 0.5, 1.5
#: Highest over lowest median of the thirds from which on the norm drifts.
DRIFTS = 2.0
#: A recommended method leaves at least three quarters of the steps that are no spike alone: its threshold is no lower
#: than about their 75th percentile.
MOST_CLIPPED = 0.25
#: Methods that follow the norms and are sturdy enough to be recommended.
FOLLOWING = ("norm(percentile(", "median_clip(", "zclip(")
#: Norms that never exceed so many times their median do not call for clipping.
CALM = 3.0
#: Healthy steps from which on percentiles and level are said to be known: five of them lie above the 95th percentile.
ENOUGH = 100


@dataclass(frozen=True, slots=True)
class Measured:
    """What the choice rests on; see `OptimizerAdvice`.

    `own` is the run's own threshold, the share of steps that it clipped, and its mean factor.
    """

    family: str
    kind: str
    percentiles: Mapping[str, float]
    spikes: tuple[int, ...]
    rate: RateLink
    drift: float | None
    healthy: int
    own: tuple[float, float, float] | None = None


def moves_with_rate(rate: RateLink) -> bool:
    """Whether the norm moves with the learning rate."""
    if rate.whole is None or rate.level is None:
        return False
    return abs(rate.whole) >= CORRELATED and max(rate.level, 1 / rate.level) >= MOVES


def choose(outcomes: Sequence[Outcome], measured: Measured) -> Outcome:
    """Return the recommended one: that which catches most spikes; of equals, the one that disturbs least."""
    if measured.family == "sign":
        return next(outcome for outcome in outcomes if outcome.method.startswith("skip_spikes"))
    following = moves_with_rate(measured.rate) or drifts(measured)
    if following:
        pool = [o for o in outcomes if o.method.startswith(FOLLOWING) and "per=" not in o.method]
    else:
        pool = [o for o in outcomes if o.note in LEVELS]
    gentle = [outcome for outcome in pool if outcome.calm_share <= MOST_CLIPPED + 0.005]
    if not gentle:
        return min(pool, key=lambda outcome: outcome.calm_share)
    return max(gentle, key=lambda outcome: (outcome.caught, -outcome.calm_share, outcome.mean_scale))


def drifts(measured: Measured) -> bool:
    """Whether the level of the norm changes in the course of the run."""
    return measured.drift is not None and measured.drift >= DRIFTS


def reasons(chosen: Outcome, outcomes: Sequence[Outcome], measured: Measured) -> Iterator[Note]:
    """Yield why the chosen one is."""
    levels = measured.percentiles
    yield Note("percentiles", {"n": measured.healthy, **{key: levels[key] for key in ("p50", "p75", "p95", "max")}})
    if measured.healthy < ENOUGH:
        yield Note("short", {"n": measured.healthy, "enough": ENOUGH})
    yield from _threshold(chosen, measured)
    yield from _rate(measured.rate)
    yield from _spikes(chosen, measured)
    yield from _optimizer(chosen, outcomes, measured)
    if measured.own is not None:
        threshold, share, scale = measured.own
        yield Note("own", {"threshold": threshold, "clipped_share": share, "scale": scale})


def _threshold(chosen: Outcome, measured: Measured) -> Iterator[Note]:
    if chosen.note in LEVELS:
        key = "fixed" if measured.healthy >= ENOUGH else "fixed_short"
        yield Note(key, {"share": chosen.calm_share, "level": LEVELS[chosen.note]})
    elif measured.family != "sign":
        if drifts(measured) and not moves_with_rate(measured.rate):
            yield Note("drift", {"factor": measured.drift})
        yield Note("following", {"share": chosen.calm_share})


def _rate(rate: RateLink) -> Iterator[Note]:
    if rate.span is None:
        yield Note("rate_unknown")
    elif not rate.values or rate.whole is None:
        yield Note("rate_constant")
    else:
        middle = sorted(rate.values)[len(rate.values) // 2]
        params = {"whole": rate.whole, "window": rate.window, "median": middle, "level": rate.level}
        low_high = {"low": min(rate.values), "high": max(rate.values)}
        yield Note("rate_moves" if moves_with_rate(rate) else "rate_apart", {**params, **low_high})


def _spikes(chosen: Outcome, measured: Measured) -> Iterator[Note]:
    if measured.spikes:
        shown = [str(step) for step in measured.spikes]
        yield Note("spikes", {"n": chosen.spikes, "where": shown, "caught": chosen.caught})
    elif measured.percentiles["max"] < CALM * measured.percentiles["p50"]:
        yield Note("calm", {"factor": measured.percentiles["max"] / measured.percentiles["p50"]})
    else:
        yield Note("no_spikes")


def _optimizer(chosen: Outcome, outcomes: Sequence[Outcome], measured: Measured) -> Iterator[Note]:
    fixed = [o for o in outcomes if not o.adapts and o.step_ratio is not None]
    hardest = min(fixed, key=lambda outcome: outcome.mean_scale, default=None)
    params = {"kind": measured.kind}
    if measured.family == "adaptive" and hardest is not None:
        shares = {"scale_share": hardest.mean_scale, "step_share": hardest.step_ratio}
        yield Note("adaptive", {**params, "method": hardest.method, **shares})
    elif measured.family == "plain":
        yield Note("plain", {**params, "step_share": chosen.step_ratio})
    elif measured.family == "sign":
        yield Note("sign", params)
    else:
        yield Note("unknown", params)
