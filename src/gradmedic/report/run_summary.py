"""A run in a dozen numbers: how long, how large, where the loss went, what the gradients did."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from gradmedic.diagnosis.coverage import Coverage, NotJudged
from gradmedic.diagnosis.noise_scale import NoiseScale, noise_scale_of
from gradmedic.diagnosis.ranks import RankState, one_of_several, rank_states
from gradmedic.facts import Facts
from gradmedic.frame import Frame
from gradmedic.report.layer_flow import Flow, FlowSum
from gradmedic.report.run_ending import RunEnding, ending_of
from gradmedic.report.switched_off import Trouble, troubles_of

#: A learning rate that somewhere is more than so many times what it is at both ends has a peak.
ABOVE_ENDS = 1.1


@dataclass(slots=True)
class Series:
    """The steps of one optimizer in one process.

    Attributes:
        optimizer, process: its name; which of several processes that trained one after the other (1, 2, …), 0 for the
            only one.
        steps, skipped: numbers of steps, skipped ones included; of skipped ones.
        loss, lr: first and last, None where nothing is known; losses of skipped steps are left out, unless all are.
        lrs: the same of the rates that parameter groups have, each different one once; of one rate alone where all
            have the same.
        peak: the rates of the step whose largest one is the largest of all, and that step, where it lies above both
            ends by more than a tenth, as with a warm-up.
        norms: pre-clip norms, the medians of the early, middle and late third; skipped steps are left out, and
            non-finite ones where a third has others.
        nonfinite: steps that were not skipped and whose norm is NaN or infinite.
        largest: the largest finite pre-clip norm that was not skipped, and its step.
        flow: how the gradient is spread over the layers.
    """

    optimizer: str
    process: int = 0
    steps: int = 0
    skipped: int = 0
    loss: tuple[float, float] | None = None
    lr: tuple[float, float] | None = None
    lrs: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    peak: tuple[tuple[float, ...], int] | None = None
    norms: tuple[float, ...] = ()
    nonfinite: int = 0
    largest: tuple[float, int] | None = None
    flow: Flow = field(default_factory=Flow)


@dataclass(slots=True)
class RunSummary:
    """Numbers of one run; None where nothing is known.

    Attributes:
        steps: of all optimizers; `optimizers` those of each.
        seconds: from the first to the last step.
        tensors, parameters: trainable ones, and their elements.
        series: of each optimizer and process, in the order in which they began.
        clipped, skipped: numbers of steps.
        clip_factor: median factor of the steps that were clipped, skipped ones left out.
        overhead: share of the time between steps that gradmedic itself took.
        step_seconds: mean time of a step, what gradmedic took of it included.
        not_judged: what the rules could say nothing about, and why.
        ranks: how far each rank of a job has come; empty for a run of one process.
        noise: the gradient noise scale; None for a run of one process.
        problems: what of the record could not be read.
        troubles: what went wrong in the recording itself, such as a part that was switched off.
        ending: how the run ended; None where that is not known, as of one that still goes on.
    """

    steps: int = 0
    optimizers: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None
    tensors: int | None = None
    parameters: int | None = None
    series: list[Series] = field(default_factory=list)
    clipped: int = 0
    skipped: int = 0
    clip_factor: float | None = None
    overhead: float | None = None
    step_seconds: float | None = None
    not_judged: list[NotJudged] = field(default_factory=list)
    ranks: list[RankState] = field(default_factory=list)
    noise: NoiseScale | None = None
    problems: list[str] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)
    ending: RunEnding | None = None


@dataclass(slots=True)
class _Scalars:
    """What is kept of a frame: tables are let go at once, since a long run has thousands of them."""

    step: int
    loss: float | None
    lr: float | None
    lrs: tuple[float, ...]
    norm: float | None
    skipped: bool


def summarize(run: Any) -> RunSummary:
    """Return the summary of anything with `meta`, `events` and `frames()`."""
    summary = RunSummary()
    made: dict[tuple[str, int], list[_Scalars]] = {}
    flows: dict[tuple[str, int], FlowSum] = {}
    coverage = Coverage()
    began = ended = None
    spent = waited = 0.0
    timed = 0
    factors: list[float] = []
    part = dict[str, int]()
    for frame in run.frames():
        began, ended = frame.time if began is None else began, frame.time
        spent += frame.overhead_seconds if frame.step_seconds else 0.0
        waited += frame.step_seconds or 0.0
        timed += bool(frame.step_seconds)
        if frame.clipped and not frame.skipped and math.isfinite(frame.clip_scale):
            factors.append(frame.clip_scale)
        summary.steps += 1
        summary.clipped += frame.clipped
        summary.skipped += frame.skipped
        summary.optimizers[frame.optimizer] = summary.optimizers.get(frame.optimizer, 0) + 1
        coverage.add(frame)
        flows.setdefault(_sort_in(made, part, frame), FlowSum()).add(frame)
    facts = _last_facts(run)
    _add_sizes(summary, facts)
    summary.ranks = rank_states(run)
    summary.ending = ending_of(run, summary.ranks)
    summary.noise = noise_scale_of(run) if len(summary.ranks) > 1 else None
    summary.problems = list(getattr(run, "problems", ()))
    summary.troubles = troubles_of(getattr(run, "events", ()))
    summary.not_judged = coverage.not_judged(facts, alone=one_of_several(run))
    if began is not None and ended is not None:
        summary.seconds = max(0.0, ended - began)
        summary.overhead = spent / waited if waited > 0 else None
        summary.step_seconds = waited / timed if timed else None
    summary.clip_factor = median(factors) if factors else None
    summary.series = [
        _series(name, process + 1 if part[name] else 0, frames, flows[name, process].flow(facts))
        for (name, process), frames in made.items()
    ]
    return summary


def _sort_in(made: dict[tuple[str, int], list[_Scalars]], part: dict[str, int], frame: Frame) -> tuple[str, int]:
    """Put a frame with its optimizer and process: within a process steps count up, and another one begins anew.

    Returns:
        That optimizer and process.
    """
    name = frame.optimizer
    earlier = made.get((name, part.setdefault(name, 0)))
    if earlier and frame.step <= earlier[-1].step:
        part[name] += 1
    scalars = _Scalars(frame.step, frame.loss, frame.lr, frame.lrs, frame.grad_norm, frame.skipped)
    key = (name, part[name])
    made.setdefault(key, []).append(scalars)
    return key


def _series(name: str, process: int, frames: list[_Scalars], flow: Flow) -> Series:
    known = [(frame.loss, frame.skipped) for frame in frames if frame.loss is not None]
    losses = [loss for loss, skipped in known if not skipped] or [loss for loss, _ in known]
    rates = [frame.lr for frame in frames if frame.lr is not None]
    norms = [frame.norm for frame in frames if frame.norm is not None and not frame.skipped]
    return Series(
        optimizer=name,
        process=process,
        steps=len(frames),
        skipped=sum(frame.skipped for frame in frames),
        loss=(losses[0], losses[-1]) if losses else None,
        lr=(rates[0], rates[-1]) if rates else None,
        lrs=_of_groups(frames),
        peak=_peak(frames),
        norms=tuple(_thirds(norms)),
        nonfinite=sum(not math.isfinite(norm) for norm in norms),
        largest=_largest(frames),
        flow=flow,
    )


def _of_groups(frames: list[_Scalars]) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return the different rates of the first and the last step that have any; None where there are none."""
    first = next((frame for frame in frames if frame.lr is not None), None)
    if first is None:
        return None
    last = next(frame for frame in reversed(frames) if frame.lr is not None)
    return _different(first), _different(last)


def _different(frame: _Scalars) -> tuple[float, ...]:
    """Return the different rates of a step, in the order of the groups."""
    return tuple(dict.fromkeys(frame.lrs)) or (frame.lr or 0.0,)


def _peak(frames: list[_Scalars]) -> tuple[tuple[float, ...], int] | None:
    known = [(max(_different(frame)), frame) for frame in frames if frame.lr is not None]
    known = [(rate, frame) for rate, frame in known if math.isfinite(rate)]
    if not known:
        return None
    highest, frame = max(known, key=lambda entry: entry[0])
    if not highest > ABOVE_ENDS * max(known[0][0], known[-1][0]):
        return None
    return _different(frame), frame.step


def _largest(frames: list[_Scalars]) -> tuple[float, int] | None:
    known = [(each.norm, each.step) for each in frames if each.norm is not None and not each.skipped]
    return max((entry for entry in known if math.isfinite(entry[0])), key=lambda entry: entry[0], default=None)


def _thirds(norms: list[float]) -> Iterable[float]:
    if len(norms) < 3:
        return norms
    third = len(norms) // 3
    return [_median(part) for part in (norms[:third], norms[third : 2 * third], norms[2 * third :])]


def _median(values: list[float]) -> float:
    """Return the median of the finite values; NaN or infinity where there are no others, so that it shows."""
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        return median(finite)
    return math.nan if any(math.isnan(value) for value in values) else median(values)


def _last_facts(run: Any) -> Facts | None:
    found = [event["facts"] for event in run.events if event.get("kind") == "facts"]
    return Facts.from_json(found[-1]) if found else None


def _add_sizes(summary: RunSummary, facts: Facts | None) -> None:
    if facts is None or not facts.parameters:
        return
    trainable = [fact for fact in facts.parameters.values() if fact.trainable]
    summary.tensors = len(trainable)
    summary.parameters = sum(fact.numel for fact in trainable)


def gradients_json(series: Series, shown: int = 8) -> dict[str, Any]:
    """Return what is known of one optimizer's gradients as strict JSON: norms, and the largest shares of layers."""
    flow = series.flow
    return {
        "optimizer": series.optimizer,
        "process": series.process,
        "norm_phases": [norm if math.isfinite(norm) else str(norm) for norm in series.norms],
        "largest_norm": None if series.largest is None else {"value": series.largest[0], "step": series.largest[1]},
        "shares": {layer: share for layer, share in flow.shares[:shown]},
        "neighbour_ratio": flow.ratio,
        "steepest": None if flow.steepest is None else list(flow.steepest),
    }


def noise_json(noise: NoiseScale | None) -> dict[str, Any] | None:
    """Return the gradient noise scale as strict JSON; None for a run of one process."""
    if noise is None:
        return None
    return {
        "global_batches": None if math.isnan(noise.ratio) else noise.ratio,
        "error": None if math.isnan(noise.error) else noise.error,
        "rows": noise.examples,
        "reason": noise.reason or None,
        "sampled_steps": len(noise.steps),
    }
