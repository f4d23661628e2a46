"""Where a non-finite value came from: data, a parameter, a forward operation, the loss, or the backward pass.

When a loss is not finite, the graph that `backward()` is about to use still holds what the forward pass saved for it.
Walking the nodes in forward order and looking at the saved values finds the first operation whose inputs were finite
and whose output was not, in the very step in which it happened, with no hook on any module and no replay.

Reading a saved tensor of a checkpointed region recomputes that region (torch keeps the random state); this happens at
most once in a run, and only after the loss was lost already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.probes.graph import GraphWalk, direct_leaves, rests_on_leaves, sequence_number, walk
from gradmedic.probes.slopes import may_be_steep, steep_elements

#: Operations that can turn finite inputs into NaN or infinity by themselves, by the beginning of their node's name.
#: Others (relu, views, dropout, copies) hand on what they were given.
_SOURCES = (
    "Log", "Sqrt", "Rsqrt", "Div", "Reciprocal", "Pow", "Exp", "Expm1", "Sinh", "Cosh", "Tan", "Acos", "Asin", "Atanh",
    "Acosh", "Norm", "LinalgVectorNorm", "Softmax", "LogSoftmax", "Addmm", "Mm", "Bmm", "Baddbmm", "Convolution",
    "Mul", "Add", "Sub", "Sum", "Prod", "Cumsum", "Cumprod", "Mean", "Var", "Std", "NativeBatchNorm", "NativeLayerNorm",
    "MseLoss", "BinaryCrossEntropy", "Digamma", "Lgamma", "Square", "Mv", "Dot", "ScaledDotProduct", "Erfinv", "Logit",
    "EuclideanDist", "Cdist", "CudnnBatchNorm", "NllLoss", "KlDiv", "MaskedFill", "Lerp", "Addcdiv", "Addcmul",
)  # fmt: skip
#: Operations that save what they were given and not what they made of it: made again, it tells for certain.
_REPEATED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Log": torch.log, "Log2": torch.log2, "Log10": torch.log10, "Log1P": torch.log1p, "Acos": torch.acos,
    "Asin": torch.asin, "Acosh": torch.acosh, "Atanh": torch.atanh, "Lgamma": torch.lgamma, "Digamma": torch.digamma,
}  # fmt: skip
_RESULTS = ("result", "output", "out", "indices", "logsumexp")
_MAX_ROWS = 10


@dataclass(slots=True)
class Origin:
    """The place at which values stopped being finite; `to_event` gives the record's form."""

    kind: str  # "data" | "parameter" | "forward" | "loss" | "backward" | "unknown"
    where: tuple[str, ...] = ()
    op: str | None = None
    rows: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    dtype: str = ""
    nan_count: int = 0
    inf_count: int = 0
    detail: str = ""
    step: int | None = None  # where it is known to have begun in an earlier step

    def to_event(self) -> dict[str, Any]:
        """Return the event of kind "origin"."""
        return {
            "kind": "origin",
            "class": self.kind,
            "where": list(self.where),
            "op": self.op,
            "rows": list(self.rows),
            "shape": list(self.shape),
            "dtype": self.dtype,
            "nan_count": self.nan_count,
            "inf_count": self.inf_count,
            "detail": self.detail,
        }


@dataclass(slots=True)
class _Saved:
    """A float tensor that a node has saved; `is_result` tells its output from its inputs, `whole` is it unflattened."""

    name: str
    tensor: torch.Tensor
    is_result: bool
    whole: torch.Tensor

    @property
    def finite(self) -> bool:
        return bool(torch.isfinite(self.tensor).all())


def find_forward_origin(
    roots: Sequence[torch.Tensor], name_of: Callable[[torch.Tensor], tuple[str, str] | None]
) -> Origin:
    """Find where a non-finite loss came from, before `backward()` frees its graph.

    Args:
        roots: the tensors on which `backward` is about to be called.
        name_of: returns (parameter name, module name) of a watched parameter, or None.

    Returns:
        The origin. Reads values on the host (one synchronisation per saved tensor): call it once, when a loss is lost.
    """
    with torch.no_grad():
        for root in roots:
            if root.grad_fn is None:
                return _leaf_root(root, name_of)
        return _Search(walk(roots), name_of).run()


def find_backward_origin(
    roots: Sequence[torch.Tensor], name_of: Callable[[torch.Tensor], tuple[str, str] | None]
) -> Origin | None:
    """Find the operation whose derivative will make the gradients non-finite, whatever the loss scale.

    Args:
        roots: the tensors, finite, on which `backward` is about to be called.
        name_of: returns (parameter name, module name) of a watched parameter, or None.

    Returns:
        The operation that the backward pass meets first; None when every derivative is finite. Reads values on the
        host: call it only when gradients have been lost already.
    """
    with torch.no_grad():
        graph = walk(roots)
        for node in reversed(graph.nodes):
            if may_be_steep(node):
                saved = {each.name.removeprefix("_saved_"): each.tensor for each in _saved_tensors(node)}
                steep = steep_elements(node, saved)
                if steep is not None and bool(steep.any()):
                    return _Search(graph, name_of).steep(node, steep)
    return None


class _Search:
    """One search through one graph."""

    def __init__(self, graph: GraphWalk, name_of: Callable[[torch.Tensor], tuple[str, str] | None]) -> None:
        self._graph = graph
        self._name_of = name_of
        # Parameters whose values are not finite explain everything behind them.
        self._storages = {leaf.untyped_storage().data_ptr(): leaf for leaf in graph.order if _readable(leaf)}

    def run(self) -> Origin:
        sick = [leaf for leaf in self._graph.order if _readable(leaf) and not bool(torch.isfinite(leaf).all())]
        weights = [leaf for leaf in sick if isinstance(leaf, torch.nn.Parameter) or self._name_of(leaf)]
        if weights:
            return self._parameter(weights)
        if sick:  # an input that asks for a gradient of its own
            return self._data(sick[0], self._first_use(sick[0]))
        clean: Any = None  # the last node, in forward order, whose saved inputs are all finite
        for node in self._graph.nodes:
            saved = _saved_tensors(node)
            bad = [each for each in saved if not each.finite]
            if bad:
                return self._explain(node, saved, bad)
            if saved:
                clean = node
        return self._after(clean)

    def _parameter(self, sick: list[torch.Tensor]) -> Origin:
        names = [found[0] for leaf in sick if (found := self._name_of(leaf))]
        origin = _describe("parameter", sick[0])
        origin.where = tuple(names[:8])
        origin.detail = "the weights themselves are not finite"
        return origin

    def _explain(self, node: Any, saved: list[_Saved], bad: list[_Saved]) -> Origin:
        inputs = [each for each in bad if not each.is_result]
        if not inputs:  # only the output is bad: this operation, unless it merely hands values on
            culprit = self._violator_behind(node) or (node if node.name().startswith(_SOURCES) else None)
            return self._operation(culprit or self._source_behind(node) or node, bad[0].tensor, saved)
        parents = [parent for parent, _ in node.next_functions]
        if all(each.name == "_saved_target" for each in inputs):
            return self._data(inputs[0].whole, node, "target")
        if all(each.name == "_saved_other" for each in inputs) and len(parents) > 1 and parents[1] is None:
            return self._operation(node, inputs[0].tensor, saved)  # a constant factor, mask or divisor
        producers = [parent for parent in parents if parent is not None and not hasattr(parent, "variable")]
        producers = [parent for parent in producers if not self._is_parameter_view(parent)]
        if not producers:
            return self._data(inputs[0].whole, node)
        culprit = self._source_behind(node)
        if culprit is not None and _product_is_finite(culprit) and self._meets_constant(node, culprit):
            return self._data(inputs[0].whole, node, "target" if self._in_loss(node) else "input")
        return self._operation(culprit or producers[0], inputs[0].tensor, saved)

    def _first_use(self, leaf: torch.Tensor) -> Any:
        at = next(at for at, each in enumerate(self._graph.order) if each is leaf)
        number = self._graph.users[at]
        return next((node for node in self._graph.nodes if sequence_number(node) == number), self._graph.nodes[0])

    def _meets_constant(self, node: Any, culprit: Any) -> bool:
        """Whether, between two nodes, what the model computed is joined with values that nothing was computed for."""
        queue, seen = [node], {node}
        for each in queue:
            parents = [parent for parent, _ in each.next_functions]
            if each is not node and len(parents) > 1 and None in parents:
                return True
            fresh = [p for p in parents if p is not None and p not in seen and p is not culprit]
            seen.update(fresh)
            queue.extend(fresh[:8])
        return False

    def _in_loss(self, node: Any) -> bool:
        return sequence_number(node) > max((use for use in self._last_uses() if use < 2**62), default=-1)

    def _is_parameter_view(self, node: Any) -> bool:
        """Whether a node makes something of parameters only: a transposed weight, also behind an autocast's cast."""
        return bool(direct_leaves(node)) and rests_on_leaves(node)

    def _source_behind(self, node: Any) -> Any:
        """Return the latest operation behind `node` that can make such a value and was given finite inputs."""
        candidates: list[Any] = []
        queue, seen = [node], {node}
        for each in queue:
            for parent, _ in each.next_functions:
                if parent is None or parent in seen or hasattr(parent, "variable"):
                    continue
                seen.add(parent)
                saved = [item for item in _saved_tensors(parent) if not item.is_result]
                if parent.name().startswith(_SOURCES) and not self._is_parameter_view(parent):
                    candidates.append(parent)
                # Nothing shows that its inputs were finite (a product keeps a constant factor only): look further back.
                if all(item.name == "_saved_other" for item in saved):
                    queue.append(parent)
        certain = [each for each in candidates if _surely_makes_it(each)]
        if certain:
            return min(certain, key=sequence_number)
        with_proof = [each for each in candidates if _saved_tensors(each)]
        return max(with_proof or candidates, key=sequence_number, default=None)

    def _violator_behind(self, node: Any, limit: int = 32) -> Any:
        """Return the nearest operation behind `node` whose saved input is finite and lies outside its domain."""
        queue, seen = [node], {node}
        for each in queue:
            if each is not node and _outside_domain(each):
                return each
            for parent, _ in each.next_functions:
                if parent is not None and parent not in seen and not hasattr(parent, "variable") and len(queue) < limit:
                    seen.add(parent)
                    queue.append(parent)
        return None

    def _data(self, tensor: torch.Tensor, node: Any, what: str = "input") -> Origin:
        origin = _describe("data", tensor)
        rows = (~torch.isfinite(tensor)).reshape(tensor.shape[0], -1).any(1) if tensor.dim() else None
        if rows is not None:
            origin.rows = tuple(int(row) for row in rows.nonzero().flatten()[:_MAX_ROWS])
        place = self._place(node)
        origin.where = (what,)
        origin.detail = f"the {what} of {place} holds non-finite values" if place else f"the {what} is not finite"
        if tensor.dtype == torch.float16 and origin.inf_count:  # the cast leaves no node: what came before it is gone
            origin.detail += "; in float16, whose largest number is 65504"
        return origin

    def _operation(self, node: Any, value: torch.Tensor, saved: list[_Saved]) -> Origin:
        kind = "loss" if self._in_loss(node) else "forward"
        origin = _describe(kind, value)
        place = self._place(node)
        origin.where = ("loss",) if kind == "loss" else ((place,) if place else ())
        origin.op = _op_name(node)
        origin.detail = _range_of(_saved_tensors(node) or saved)
        return origin

    def steep(self, node: Any, where: torch.Tensor) -> Origin:
        """Describe an operation whose derivative is not finite at these elements."""
        count = int(where.sum())
        origin = Origin("backward", op=_op_name(node), shape=tuple(where.shape), nan_count=count)
        saved = _saved_tensors(node)
        origin.dtype = str(saved[0].tensor.dtype).removeprefix("torch.")
        place = "loss" if self._in_loss(node) else self._place(node)
        origin.where = (place,) if place else ()
        origin.detail = f"its derivative is not finite at {count} of {where.numel()} elements"
        given = _range_of(saved)
        origin.detail += f"; {given}" if given else ""
        return origin

    def _after(self, clean: Any) -> Origin:
        """Everything saved is finite: the value was lost behind the last node that saved anything."""
        certain = next((each for each in self._graph.nodes if _surely_makes_it(each)), None)
        if certain is not None:
            clean = certain
        number = sequence_number(clean) if clean is not None else -1
        later = [each for each in self._graph.nodes if sequence_number(each) >= number]
        sources = [each for each in later if each.name().startswith(_SOURCES) and not self._is_parameter_view(each)]
        proven = [each for each in sources if _saved_tensors(each)]
        node = (proven or sources or later or [None])[0]
        if node is None:
            return Origin("loss", ("loss",), detail="nothing was saved that shows more")
        leaf_value = torch.zeros(())
        origin = self._operation(node, leaf_value, [])
        origin.shape, origin.dtype, origin.nan_count, origin.inf_count = (), "", 0, 0
        return origin

    def _last_uses(self) -> list[int]:
        return [sequence_number(node) for node in self._graph.nodes if direct_leaves(node, depth=1)]

    def _place(self, node: Any) -> str:
        """Return the module of the parameter that the node uses itself, or that was used last before it."""
        for leaf in direct_leaves(node):
            found = self._name_of(leaf)
            if found:
                return found[1] or found[0]
        number = sequence_number(node)
        before = [leaf for leaf, use in zip(self._graph.order, self._graph.users, strict=True) if use <= number]
        for leaf in reversed(before):
            found = self._name_of(leaf)
            if found:
                return found[1] or found[0]
        return ""


def _leaf_root(root: torch.Tensor, name_of: Callable[[torch.Tensor], tuple[str, str] | None]) -> Origin:
    origin = _describe("parameter", root)
    found = name_of(root)
    origin.where = (found[0],) if found else ()
    return origin


def _product_is_finite(node: Any) -> bool:
    """Whether a matrix product, made again from what it has saved, is finite: then it is not to blame."""
    factors = {each.name: each.tensor for each in _saved_tensors(node)}
    one, other = factors.get("_saved_mat1"), factors.get("_saved_mat2")
    if one is None:
        one, other = factors.get("_saved_self"), factors.get("_saved_mat2")
    if one is None or other is None or not node.name().startswith(("Addmm", "Mm", "Bmm")):
        return False
    return bool(torch.isfinite(one @ other).all())


def _outside_domain(node: Any) -> bool:
    saved = {each.name: each.tensor for each in _saved_tensors(node) if not each.tensor.is_complex()}
    name = node.name()
    if name.startswith(("Log", "Sqrt", "Rsqrt")) and not name.startswith(("LogSoftmax", "Logsumexp", "LogSigmoid")):
        value = saved.get("_saved_self")
        floor = -1.0 if name.startswith("Log1P") else 0.0
        return value is not None and bool((value <= floor).any())
    if name.startswith("Div"):
        value = saved.get("_saved_other")
        return value is not None and bool((value == 0).any())
    return False


def _before_flattening(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a saved tensor is a view of, when it holds all of it: a layer flattens [batch, time, features]."""
    base = tensor._base
    fits = base is not None and base.dim() > tensor.dim() and base.numel() == tensor.numel() and base.is_contiguous()
    return base if fits and base is not None and _readable(base) else tensor


def _readable(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.device.type != "meta" and type(tensor) in _PLAIN


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _saved_tensors(node: Any) -> list[_Saved]:
    found: list[_Saved] = []
    for key in dir(node):
        if not key.startswith("_saved_") or key.endswith(("_sizes", "_strides")):
            continue
        try:
            value = getattr(node, key)
        except (RuntimeError, AttributeError):  # freed, or changed in place since
            continue
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(tensor, torch.Tensor) and _is_float(tensor) and _readable(tensor.detach()):
                is_result = key.removeprefix("_saved_").rstrip("0123456789") in _RESULTS
                found.append(_Saved(key, tensor.detach(), is_result, _before_flattening(tensor).detach()))
    return found


def _surely_makes_it(node: Any) -> bool:
    """Whether the node's operation, made again on its saved input, turns finite values into others."""
    again = _REPEATED.get(node.name().partition("Backward")[0])
    given = next((each for each in _saved_tensors(node) if each.name == "_saved_self"), None) if again else None
    return again is not None and given is not None and given.finite and not bool(again(given.tensor).isfinite().all())


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _describe(kind: str, tensor: torch.Tensor) -> Origin:
    values = tensor.detach()
    nans = int(torch.isnan(values).sum())
    return Origin(
        kind,
        shape=tuple(values.shape),
        dtype=str(values.dtype).removeprefix("torch."),
        nan_count=nans,
        inf_count=int((~torch.isfinite(values)).sum()) - nans,
    )


def _op_name(node: Any) -> str:
    name = node.name().removesuffix("Backward").rstrip("0123456789").removesuffix("Backward").replace("Log1P", "Log1p")
    return "".join(("_" + c.lower()) if c.isupper() and i else c.lower() for i, c in enumerate(name))


def _range_of(saved: Sequence[_Saved]) -> str:
    for each in saved:
        if not each.is_result and each.tensor.numel() and not each.tensor.is_complex() and each.finite:
            low, high = (float(value) for value in torch.aminmax(each.tensor.float()))
            return f"its input ran from {low:.4g} to {high:.4g}"
    return ""
