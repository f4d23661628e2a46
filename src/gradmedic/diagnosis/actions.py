"""What a remedy asks for, as data: a small vocabulary of actions that gradmedic, a script or a reader can carry out.

An action is a mapping with a `kind` and the keys of that kind. In the message files a value may name what the rule has
measured: `"{limit}"` is that number (or list of names) itself, `"1/{times}"` its reciprocal, and within a longer text
the placeholder is written out. A key whose placeholder has nothing to say is left out.

>>> resolve({"kind": "lr", "factor": "1/{times}", "value": "{lower}"}, {"times": 4, "lower": None})
{'kind': 'lr', 'factor': 0.25}
"""

from __future__ import annotations

import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from gradmedic.errors import InputError

#: A JSON mapping with "kind" and the keys of that kind.
Action: TypeAlias = Mapping[str, Any]

_NUMBER: tuple[type, ...] = (int, float)
_NAMES: tuple[type, ...] = (list, tuple)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of action: what it does, which keys it may have, and which it must have."""

    meaning: str
    keys: Mapping[str, tuple[type, ...]] = field(default_factory=dict)
    required: frozenset[str] = frozenset()


#: Every kind of action. `target` is a list of names of parameters or modules; without it the whole model is meant.
KINDS: Mapping[str, Kind] = {
    "clip": Kind("clip gradients, as `gradmedic run --clip SPEC` does", {"spec": (str,)}, frozenset({"spec"})),
    "guard": Kind("skip or halt, as `gradmedic run --guard` or the given transform does", {"spec": (str,)}),
    "lr": Kind(
        "multiply the learning rate by `factor` (`value`: what it then is), of `target` or one `optimizer` only",
        {"factor": _NUMBER, "value": _NUMBER, "target": _NAMES, "optimizer": (str,)},
        frozenset({"factor"}),
    ),
    "warmup": Kind("raise the learning rate linearly from 0 over the first `steps`", {"steps": (int,)}),
    "optimizer": Kind(
        "use another optimizer (`name`), other settings, or other parameters (`add`, `drop`, `no_decay`)",
        {
            "name": (str,),
            "eps": _NUMBER,
            "beta2": _NUMBER,
            "weight_decay": _NUMBER,
            "add": _NAMES,
            "drop": _NAMES,
            "no_decay": _NAMES,
        },
    ),
    "init": Kind(
        'initialise `target` by a scheme of `gradmedic.init`, "auto" for the one it suggests; `value`: of a constant',
        {"scheme": (str,), "target": _NAMES, "value": _NUMBER},
        frozenset({"scheme"}),
    ),
    "precision": Kind("compute in another number format", {"mode": (str,)}, frozenset({"mode"})),
    "requires_grad": Kind(
        "freeze (`value` false) or unfreeze `target`", {"value": (bool,), "target": _NAMES}, frozenset({"value"})
    ),
    "stop": Kind("end the training after `step`", {"step": (int,)}),
    "code": Kind(
        "a change of the script or the data that only its author can make", {"hint": (str,)}, frozenset({"hint"})
    ),
}

#: What an action of kind "code" is about.
HINTS: Mapping[str, str] = {
    "activation": "another activation function",
    "balance": "weigh or resample classes",
    "batching": "put samples together in another way",
    "bias": "start a bias at another value",
    "checkpoint": "look at the weights that were loaded",
    "clamp": "keep an operation's input in its domain",
    "connect": "let the loss reach the parameters",
    "data": "look at, clean or replace samples",
    "detach": "cut the graph between steps",
    "engine": "ask the training engine",
    "epsilon": "add an epsilon inside an operation",
    "freeze": "freeze a part on purpose",
    "ignore": "nothing needs to be done",
    "inspect": "look at a part of the model",
    "logits": "give the loss what it wants",
    "loss": "another loss",
    "mask": "mend a mask",
    "mode": "call train() or eval()",
    "normalize": "standardise, or add a normalisation layer",
    "order": "move a call to another place in the loop",
    "pairing": "look at whether inputs and targets belong together",
    "pipeline": "look at what feeds the model",
    "qk-norm": "normalise queries and keys",
    "raise": "let a call raise instead of going on",
    "rebuild": "build the optimizer anew",
    "reduction": "a mean in place of a sum, or no further division",
    "regularize": "augmentation, dropout, penalties, label noise",
    "residual": "residual connections or normalisation",
    "rounding": "an optimizer with stochastic rounding or compensated sums",
    "scheduler": "call the scheduler at another rate",
    "shape": "give prediction and target one shape",
    "shrink": "shrink a gradient on its way",
    "shuffle": "shuffle the data",
    "sign": "turn the sign of the loss",
    "size": "another batch size or model size",
    "targets": "scale or convert targets",
    "tokenizer": "look at the vocabulary",
    "unclip": "leave clipping out",
    "unscale": "unscale before clipping",
    "weight_decay": "decay weights",
    "wrapper": "call the wrapped model, the same on every rank",
    "z-loss": "penalise the logits' log-normaliser",
    "zero_grad": "clear gradients once per step",
}

#: Schemes of an action of kind "init": what `gradmedic.init` suggests, or one of its schemes.
SCHEMES: frozenset[str] = frozenset(
    {"auto", "bias", "embedding", "forget", "he", "lecun", "ones", "orthogonal", "residual", "small", "xavier", "zeros"}
)

#: Number formats of an action of kind "precision".
MODES: frozenset[str] = frozenset({"autocast", "bfloat16", "float32", "scaler"})


def check_action(action: Action) -> None:
    """Raise InputError unless this is an action of the vocabulary.

    Args:
        action: as `resolve` makes it, without placeholders.

    Raises:
        InputError: an unknown kind, key, hint, mode or scheme, a missing key, or a value of another type.

    Example:
        >>> check_action({"kind": "code", "hint": "shuffle"})
    """
    kind = KINDS.get(action.get("kind", ""))
    if kind is None:
        raise InputError(f"action: expected a kind out of {', '.join(sorted(KINDS))}, got {action!r}")
    given = {key: value for key, value in action.items() if key != "kind"}
    missing, unknown = kind.required - given.keys(), given.keys() - kind.keys.keys()
    if missing or unknown:
        raise InputError(
            f"action {action!r}: expected the keys {', '.join(sorted(kind.keys))}"
            f", of which it needs {', '.join(sorted(kind.required)) or 'none'}"
        )
    for key, value in given.items():
        expected = kind.keys[key]
        if not isinstance(value, expected) or (isinstance(value, bool) and bool not in expected):
            names = " or ".join(each.__name__ for each in expected)
            raise InputError(f"action {action!r}: expected {key} to be {names}, got {value!r}")
    for key, known in (("hint", HINTS), ("mode", MODES), ("scheme", SCHEMES)):
        if key in given and given[key] not in known:
            raise InputError(f"action {action!r}: expected a {key} out of {', '.join(sorted(known))}")


def resolve(
    template: Action | None, params: Mapping[str, Any], texts: Mapping[str, str] | None = None
) -> Action | None:
    """Return an action with its placeholders filled in.

    Args:
        template: what the message file holds; None stays None.
        params: what the rule has measured, by placeholder.
        texts: the same as it is written within a longer text; by default its `str`.

    Returns:
        A JSON-ready mapping of plain values; numbers worked out here have three significant digits. None when a key
        that the kind needs has nothing to say.
    """
    if template is None:
        return None
    written = {key: str(value) for key, value in params.items()} if texts is None else texts
    action = {key: _filled(value, params, written) for key, value in template.items()}
    action = {key: value for key, value in action.items() if value is not None}
    kind = KINDS.get(action.get("kind", ""))
    return None if kind is not None and kind.required - action.keys() else action


def expression(action: Action | None) -> str:
    """Return the call that carries an action out in a loop that uses gradmedic, "" where there is none.

    Example:
        >>> expression({"kind": "clip", "spec": "norm(1.0)"})
        'gm.clip.norm(1.0)'
    """
    kind = action.get("kind") if action else None
    if action is not None and kind in ("clip", "guard"):
        return f"gm.{kind}.{action.get('spec', 'default()')}"
    if action is not None and kind == "init" and action.get("scheme") == "auto":
        return "gm.init.suggest(model).apply_()"
    return ""


def run_options(action: Action | None) -> tuple[str, ...]:
    """Return the options of `gradmedic run` that carry an action out; empty where none does.

    Example:
        >>> run_options({"kind": "guard"})
        ('--guard',)
    """
    match action:
        case {"kind": "clip", "spec": str(spec)}:
            return ("--clip", spec)
        case {"kind": "guard", "spec": str(spec)} if spec != "default()":
            return ("--clip", f"guard.{spec}")
        case {"kind": "guard"}:
            return ("--guard",)
        case {"kind": "stop", "step": int(step)}:
            return ("--steps", str(step + 1))  # steps are counted from 0
        case _:
            return ()


def _filled(value: Any, params: Mapping[str, Any], texts: Mapping[str, str]) -> Any:
    if not isinstance(value, str):
        return value
    parts = [(text, name) for text, name, _, _ in string.Formatter().parse(value)]
    named = [name for _, name in parts if name]
    if any(params.get(name) is None for name in named):
        return None
    if len(parts) == 1 and named and parts[0][0] in ("", "1/"):
        measured = _plain(params[named[0]])
        return measured if parts[0][0] == "" else _reciprocal(measured)
    return value.format_map(texts)


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it; None for what is empty or not finite."""
    if hasattr(value, "item"):  # numpy scalars
        value = value.item()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [str(entry) for entry in value] or None
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


def _reciprocal(value: Any) -> float | None:
    return float(f"{1 / value:.3g}") if isinstance(value, (int, float)) and value else None
