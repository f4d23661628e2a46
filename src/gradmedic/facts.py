"""What is known of a run beside its numbers: which parameters exist, who owns them, what the loss can reach.

`Facts` is plain data, JSON-ready through `to_json` / `from_json`. The monitor emits the whole of it as an event of kind
"facts" whenever it has changed (after attaching, after each of the first steps, when parameters come or go); the last
one read holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ParameterFact:
    """One trainable or frozen parameter of the watched models.

    Attributes:
        name: stable qualified name, without wrapper prefixes.
        module: qualified name of the module that holds it; `kind` is that module's class name.
        shape, dtype, numel: as torch has them ("float32").
        trainable: requires_grad.
        optimizer: name of the optimizer that owns it, None when none does.
        aliases: further names of the same tensor (tied weights).
        reached: whether the loss could reach it in the graph walk of the first backward calls: True in at least one,
            False in all, None when no walk was possible (compiled graph, no backward seen yet).
        called: whether its module was called through `__call__` after it was found unreached; None when not looked at.
        order: place in execution order (0 = first), None when unknown.
        group: place of its parameter group in that optimizer; None where not known.
        received: whether a gradient was ever accumulated into it (also where no optimizer owns it); None when
            not looked at.
        low_precision: whether dtype is bfloat16 or float16.
    """

    name: str
    module: str = ""
    kind: str = ""
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    numel: int = 0
    trainable: bool = True
    optimizer: str | None = None
    group: int | None = None
    aliases: tuple[str, ...] = ()
    reached: bool | None = None
    called: bool | None = None
    order: int | None = None
    received: bool | None = None

    @property
    def low_precision(self) -> bool:
        return self.dtype in ("bfloat16", "float16")


@dataclass(slots=True)
class InputFact:
    """Statistics of one floating or integer tensor that the model was given in one of the first steps.

    Attributes:
        mode_share: share of the most frequent value, for integer tensors of at least two dimensions (token ids);
            None where it was not measured.
        feature_ratio: largest over smallest standard deviation among the features (columns) of a table [rows, columns]
            of floating numbers, constant columns left out; None where it was not measured.
    """

    name: str
    step: int
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    nan_count: int = 0
    inf_count: int = 0
    minimum: float = 0.0
    maximum: float = 0.0
    mean: float = 0.0
    std: float = 0.0
    mode_share: float | None = None
    feature_ratio: float | None = None


@dataclass(slots=True)
class LossFact:
    """One loss call that the graph of one of the first backward calls has shown.

    Attributes:
        step: optimizer step in which it was seen.
        kind: "cross_entropy" (log_softmax and nll_loss), "nll" (nll_loss of something else), "soft_cross_entropy"
            (log_softmax against probabilities, or of unknown targets), "bce", "bce_with_logits", "mse", "l1",
            "smooth_l1", "huber", "kl_div", "kl_div_log_target" or "poisson_nll"; hand-written forms are named like the
            functions they stand for.
        module: module whose parameter was used last before the loss.
        reduction: "mean", "sum" or "none", as it comes out at the root.
        normalized: whether the loss is divided, or multiplied by a factor below one, on its way to the root.
        weighted: whether it is weighted or masked: by class, by element, or by a factor for each row.
        broadcast: whether prediction and target were both expanded, along different dimensions.
        feed: operation directly behind what the loss calls its input ("Softmax", "Sigmoid", "Relu", "Addmm", ...).
        inner: operation directly behind that one.
        numbers: what was measured, those that are finite: "count" (targets, without ignored ones), "classes", "loss"
            (mean over targets, without weights), "baseline" (the same loss of the best constant prediction),
            "floor" (of a perfect prediction, in a binary loss: the mean entropy of its targets, 0 for yes or no),
            "label_share" (share of the most frequent class), "top_share" (share of the class predicted most often),
            "entropy" (of the prediction, over ln classes), "log_z" (mean |logsumexp| of the logits), "unit_rows" (share
            of rows that are distributions), "positive_share" (share of log-probabilities above 0), "outside_share"
            (share of targets outside the range of `feed`, or of the loss), and minimum, maximum, mean, std and rms of
            target and prediction ("target_min", ..., "prediction_rms").
    """

    step: int
    kind: str
    module: str = ""
    reduction: str = "mean"
    normalized: bool = False
    weighted: bool = False
    broadcast: bool = False
    feed: str = ""
    inner: str = ""
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class Facts:
    """Everything about the run that is not a per-step number.

    Attributes:
        parameters: by name, in registration order.
        optimizers: name -> {"class", "defaults", "numel", "tensors"}, and "groups" where parameter groups have settings
            of their own or there are several: of each group the settings in which it differs from the defaults. Their
            learning rates are in each frame.
        stale: names (or "shape" descriptions) of tensors that an optimizer holds and no watched model has; each entry
            {"optimizer", "name", "shape", "twin"}: `twin` is the model parameter of the same shape, if one is known.
        inputs: input statistics of the first steps.
        losses: loss calls of the first steps; empty where none was seen.
        steps_walked: number of backward calls whose graph was walked.
        boundary: "optimizer" | "backward" (weights updated by hand) | "observe" (explicit).
        optimizer_in_backward: optimizers step inside the backward pass, so that a global clip is impossible.
        float16: whether a graph of the first backward calls computed in float16, autocast included.
        engine: name of an engine that keeps gradients to itself ("DeepSpeed"), None otherwise.
    """

    parameters: dict[str, ParameterFact] = field(default_factory=dict)
    optimizers: dict[str, dict[str, Any]] = field(default_factory=dict)
    stale: list[dict[str, Any]] = field(default_factory=list)
    inputs: list[InputFact] = field(default_factory=list)
    losses: list[LossFact] = field(default_factory=list)
    steps_walked: int = 0
    boundary: str = "optimizer"
    optimizer_in_backward: bool = False
    float16: bool = False
    engine: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        # Not dataclasses.asdict: it copies every number and string of thousands of entries, at each of the first steps.
        values = {key: getattr(self, key) for key in self.__dataclass_fields__}
        values["parameters"] = {name: _as_dict(fact) for name, fact in self.parameters.items()}
        values["inputs"] = [_as_dict(fact) for fact in self.inputs]
        values["losses"] = [_as_dict(fact) for fact in self.losses]
        values["optimizers"] = {name: dict(entry) for name, entry in self.optimizers.items()}
        values["stale"] = [dict(entry) for entry in self.stale]
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """Read what `to_json` wrote; unknown keys of later versions are left out."""
        known = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        known["parameters"] = {name: _fact(ParameterFact, entry) for name, entry in known.get("parameters", {}).items()}
        known["inputs"] = [_fact(InputFact, entry) for entry in known.get("inputs", [])]
        known["losses"] = [_fact(LossFact, entry) for entry in known.get("losses", [])]
        return cls(**known)


def settings_of_groups(entry: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the settings of each parameter group of one of `Facts.optimizers`; of all as one where none are known."""
    defaults: Mapping[str, Any] = entry.get("defaults") or {}
    groups: list[Mapping[str, Any]] = entry.get("groups") or [{}]
    return [{**defaults, **own} for own in groups]


def _as_dict(fact: ParameterFact | InputFact | LossFact) -> dict[str, Any]:
    return {key: getattr(fact, key) for key in fact.__dataclass_fields__}


def _fact(kind: type[Any], entry: Mapping[str, Any]) -> Any:
    values = {key: entry[key] for key in kind.__dataclass_fields__ if key in entry}
    for key in ("shape", "aliases"):
        if key in values:
            values[key] = tuple(values[key])
    return kind(**values)
