"""Seeing how parameters are used: the model runs once on a sample, and each call of a torch function is followed.

A function mode sees calls of modules and of plain functions alike, and no hook is placed anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gradmedic.init.gains import activation_name
from gradmedic.init.wiring import Wiring

_LAYERS = frozenset(
    {"linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "bilinear"}
)
_PRODUCTS = frozenset({"matmul", "mm", "bmm", "addmm", "baddbmm", "einsum", "rmatmul", "mv"})
_NORMS = frozenset({"layer_norm", "batch_norm", "group_norm", "instance_norm", "rms_norm"})
_RECURRENT = frozenset(
    {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}
)
_LOOKUPS = frozenset({"embedding", "embedding_bag"})
_ADDS = frozenset({"add", "radd", "iadd"})
#: Outputs of these are still the model's last layer's.
_READOUTS = frozenset({"sigmoid", "logsigmoid"})


@dataclass(frozen=True, slots=True)
class _Value:
    """What is known of a tensor: which values it was made from (a bit for each), and which weights made it.

    `sources`: weights with nothing but shapes, norms and sums since; `ends`: weights of norms likewise; `read`: weights
    with a read-out such as a sigmoid since; `entry`: the value that the last layer took.
    """

    index: int
    history: int = 0
    sources: frozenset[int] = frozenset()
    ends: frozenset[int] = frozenset()
    read: frozenset[int] = frozenset()
    entry: int = -1
    layers: int = 0


class Tracer(TorchFunctionMode):
    """Follows one forward pass."""

    def __init__(self, names: Mapping[int, str]) -> None:
        super().__init__()
        self.wiring = Wiring(traced=True)
        self._names = names
        #: id of a view of a parameter -> the parameter's id.
        self._weights: dict[int, int] = {key: key for key in names}
        self._values: dict[int, _Value] = {}
        #: Tensors stay alive meanwhile, so that no id is given twice.
        self._kept: list[torch.Tensor] = []
        self._branches: set[frozenset[int]] = set()
        self._next = 0

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run the function, and note what it did."""
        kwargs = kwargs or {}
        before = [(tensor, self._values.get(id(tensor))) for tensor in _tensors((args, kwargs))]
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "").strip("_")
        results = list(_tensors(out)) if before else []
        if not results:
            return out
        value = self._follow(name, args, kwargs, before, results)
        for tensor in results:
            if value is not None and id(tensor) not in self._weights:
                self._values[id(tensor)] = value
            self._kept.append(tensor)
        return out

    def finish(self, output: Any) -> Wiring:
        """Note which weights made the output, and return what was seen."""
        for tensor in _tensors(_plain(output)):
            value = self._values.get(id(tensor))
            if value is not None:
                self.wiring.outputs |= (value.sources - self.wiring.branch_ends) | value.read
        return self.wiring

    def _follow(
        self,
        name: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        before: list[tuple[torch.Tensor, _Value | None]],
        results: list[torch.Tensor],
    ) -> _Value | None:
        weights = [
            self._weights[id(tensor)] for tensor, _ in before if id(tensor) in self._weights and tensor.dim() > 1
        ]
        inputs = [self._known(tensor, value) for tensor, value in before if id(tensor) not in self._weights]
        if weights and not inputs and name not in _PRODUCTS:  # a view of a parameter: weight.t(), weight[:n]
            for tensor in results:
                self._weights[id(tensor)] = weights[0]
            return None
        if name in _NORMS:
            inputs = inputs[:1]  # running statistics are no inputs
        merged = self._merge(inputs)
        if name in _LAYERS or (name in _PRODUCTS and weights) or name == "multi_head_attention_forward":
            return self._layer(name, before, weights, inputs, merged)
        if name in _LOOKUPS or name in _RECURRENT:
            self.wiring.decide(merged.sources, "linear")
            return _Value(merged.index, merged.history, layers=merged.layers + 1, entry=_first(inputs))
        activation = activation_name(name)
        if activation is None and name in ("clamp", "clamp_min", "relu") and _clamps_at_zero(args, kwargs):
            activation = "relu"
        if activation is not None:
            self.wiring.decide(merged.sources, activation, _slope(activation, args, kwargs))
            read = merged.sources if activation in _READOUTS else frozenset()
            return _Value(merged.index, merged.history, read=read, layers=merged.layers)
        if name == "scaled_dot_product_attention" or (name in _PRODUCTS and len(inputs) > 1):
            self.wiring.decide(merged.sources, "attention")
            return _Value(merged.index, merged.history, layers=merged.layers)
        if name in _NORMS:
            norms = frozenset(self._weights[id(t)] for t, _ in before if id(t) in self._weights and t.dim() == 1)
            scale = [key for key in norms if self._names[key].endswith("weight")]
            return _with(merged, ends=frozenset(scale[:1]) if merged.sources else frozenset())
        if name in _ADDS and len(inputs) == 2:
            self._sum(*inputs)
            return _with(merged, ends=frozenset())
        return merged

    def _layer(
        self,
        name: str,
        before: list[tuple[torch.Tensor, _Value | None]],
        weights: list[int],
        inputs: list[_Value],
        merged: _Value,
    ) -> _Value:
        self.wiring.decide(merged.sources, "linear")
        if name == "multi_head_attention_forward":
            made = [weight for weight in weights if self._names[weight].endswith("out_proj.weight")]
            self.wiring.decide((weight for weight in weights if weight not in made), "attention")
        else:
            made = weights
        last = id(before[-1][0])
        if name in _PRODUCTS and name != "einsum" and self._weights.get(last) == last:  # x @ W, W not turned over
            self.wiring.transposed.add(last)
        return _Value(merged.index, merged.history, frozenset(made), entry=_first(inputs), layers=merged.layers + 1)

    def _sum(self, one: _Value, other: _Value) -> None:
        """Notice a residual branch: one of the two was made from the other, or from what the other's layer took."""
        for branch, trunk in ((one, other), (other, one)):
            identity = branch.history >> trunk.index & 1
            projected = trunk.entry >= 0 and branch.history >> trunk.entry & 1 and branch.layers > trunk.layers
            ends = branch.ends or branch.sources
            if ends and branch.index != trunk.index and (identity or projected):
                self.wiring.branch_ends |= ends
                self._branches.add(ends)
                self.wiring.branches = len(self._branches)
                return

    def _known(self, tensor: torch.Tensor, value: _Value | None) -> _Value:
        if value is None:
            value = self._values[id(tensor)] = _Value(self._number())
            self._kept.append(tensor)
        return value

    def _merge(self, inputs: list[_Value]) -> _Value:
        history = 0
        sources: frozenset[int] = frozenset()
        for value in inputs:
            history |= value.history | 1 << value.index
            sources |= value.sources
        single = inputs[0] if len(inputs) == 1 else None
        return _Value(
            self._number(),
            history,
            sources,
            single.ends if single else frozenset(),
            single.read if single else frozenset(),
            single.entry if single else -1,
            max((value.layers for value in inputs), default=0),
        )

    def _number(self) -> int:
        self._next += 1
        return self._next


def _with(value: _Value, *, ends: frozenset[int]) -> _Value:
    return _Value(value.index, value.history, value.sources, ends, value.read, value.entry, value.layers)


def _first(inputs: list[_Value]) -> int:
    return inputs[0].index if inputs else -1


def _clamps_at_zero(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    low = args[1] if len(args) > 1 else kwargs.get("min")
    high = args[2] if len(args) > 2 else kwargs.get("max")
    return isinstance(low, (int, float)) and low == 0 and high is None


def _slope(activation: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    if activation == "prelu":
        return 0.25  # where nn.PReLU begins
    if activation != "leaky_relu":
        return 0.0
    slope = args[1] if len(args) > 1 else kwargs.get("negative_slope", 0.01)
    return float(slope) if isinstance(slope, (int, float)) else 0.01


def _plain(output: Any) -> Any:
    """Return what an output object of a library holds."""
    if isinstance(output, (torch.Tensor, Mapping, list, tuple)):
        return output
    return getattr(output, "__dict__", ())


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested containers."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _tensors(entry)
    elif isinstance(value, (list, tuple)):
        for entry in value:
            yield from _tensors(entry)
