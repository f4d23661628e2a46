"""What a trial says: plain data, without words of any language."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Note:
    """One sentence as data: which one, and the numbers in it. `gradmedic.report.clip_text` has the words."""

    key: str
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one method would have done.

    Attributes:
        method: how it is written behind `--clip`, such as "norm(1.3)".
        expression: the same in Python, "gm.clip.norm(1.3)".
        note: "p75", "p90", "p95" (percentiles of the healthy part), "usual" (what is used without looking), "own" (what
            the run had), "" otherwise.
        transform: the transform itself, ready for `gm.watch(..., transform=...)`.
        adapts: whether its threshold follows the norms.
        steps: number of steps that it was tried on.
        clipped_share: share of them that it would have clipped or skipped, in [0, 1].
        calm_share: the same among the steps that are no spike.
        skipped_share: share that it would have skipped.
        mean_scale: mean of the joint factor, norm after / norm before; a skipped step counts as 0.
        step_ratio: mean length of the update relative to that without clipping, spikes left out; see `step_length`.
            None where nothing is known of the optimizer.
        spikes, caught: number of spikes among its steps, and of those that it would have brought below the level at
            which they count as spikes, or skipped.
        layers: module -> (share of its steps clipped, mean factor); of methods that treat every tensor by itself.
    """

    method: str
    expression: str
    note: str
    transform: Any = field(hash=False, repr=False)
    adapts: bool
    steps: int
    clipped_share: float
    calm_share: float
    skipped_share: float
    mean_scale: float
    step_ratio: float | None
    spikes: int
    caught: int
    layers: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class RateLink:
    """How norm and learning rate go together; logarithms of both, without spikes.

    Attributes:
        window: number of steps of the moving window; 0 where the learning rate is not known or never changes.
        steps, values: last step of each window, and Pearson's correlation in it; windows in which the learning rate
            stands still have none.
        whole: Spearman's rank correlation over the whole healthy part; None where there is none.
        span: highest / lowest learning rate; None where it is not known.
        level: median norm at the upper third of the learning rates / at the lower third; None likewise.
    """

    window: int = 0
    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    whole: float | None = None
    span: float | None = None
    level: float | None = None


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """One module's own tensors.

    Attributes:
        name: the module, "" for the root.
        tensors: how many.
        median, p95: of their joint pre-clip norm in the healthy part.
        share: median share of the squared norm of the whole.
        leading_share: among the highest 5 % of the norms of the whole, in how many it has the largest part.
    """

    name: str
    tensors: int
    median: float
    p95: float
    share: float
    leading_share: float


@dataclass(frozen=True, slots=True)
class OptimizerAdvice:
    """What is advised for one optimizer.

    Attributes:
        optimizer, kind: its name and its class, "" where that is not known.
        family: "adaptive" (Adam and its kin), "sign" (Lion, Muon …), "plain" (SGD), "unknown".
        steps: recorded steps; `tried`: those that the methods were tried on; `healthy`: those of these that are no
            spike.
        first, last: first and last step tried; None without any.
        percentiles: "p50", "p75", "p90", "p95", "p99", "max" of the pre-clip norms of the healthy part.
        spikes: steps whose norm stands out.
        rate: how norm and learning rate go together.
        drift: highest / lowest median norm of the three thirds of the healthy part; None where too short.
        outcomes: what each method would have done.
        layers: the modules, those that drive the highest norms first; empty without per-tensor tables.
        recommended: one of the outcomes, None where nothing can be advised.
        reasons: why this one; `notes`: what the numbers rest on; `problem`: why nothing can be advised.
    """

    optimizer: str
    kind: str = ""
    family: str = "unknown"
    steps: int = 0
    tried: int = 0
    healthy: int = 0
    first: int | None = None
    last: int | None = None
    percentiles: Mapping[str, float] = field(default_factory=dict, hash=False)
    spikes: tuple[int, ...] = ()
    rate: RateLink = field(default_factory=RateLink)
    drift: float | None = None
    outcomes: tuple[Outcome, ...] = ()
    layers: tuple[LayerNorms, ...] = ()
    recommended: Outcome | None = None
    reasons: tuple[Note, ...] = ()
    notes: tuple[Note, ...] = ()
    problem: Note | None = None
