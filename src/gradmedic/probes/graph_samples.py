"""One look at the graph of a sampled step, just before its backward pass: loss, batch, activations, attention, time.

No hook is put on anything: what the forward pass has saved for the backward pass is still there. What torch computes by
functions (`F.relu`, `F.scaled_dot_product_attention`, `F.cross_entropy`) shows as well as what modules compute.
Nothing shows of compiled graphs, nor of checkpointed regions, whose saved values would have to be computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gradmedic.facts import LossFact
from gradmedic.probes.activations import Units, activation_numbers, is_activation, read_flags, unit_axis
from gradmedic.probes.attention import is_attention, measure_attention
from gradmedic.probes.attention_heads import watch_gradients
from gradmedic.probes.batch_identity import batch_rows
from gradmedic.probes.carried_graph import CarriedGraph
from gradmedic.probes.embeddings import EmbeddingCounts
from gradmedic.probes.graph import GraphWalk, sequence_number, walk
from gradmedic.probes.late_names import LateNames
from gradmedic.probes.loss_broadcast import is_broadcast, terms_of
from gradmedic.probes.loss_divergences import find_divergences
from gradmedic.probes.loss_graph import LossCall, find_losses
from gradmedic.probes.loss_values import Numbers, measure_loss
from gradmedic.probes.module_stats import ModuleSample
from gradmedic.probes.node_places import NameOf, place_of
from gradmedic.probes.node_values import operation
from gradmedic.probes.priors import Priors, prior_entropy
from gradmedic.probes.recurrent import recurrent_rows
from gradmedic.probes.root_inputs import input_rows, prediction_spread
from gradmedic.probes.startle import Startle
from gradmedic.probes.token_feeds import TokenFeeds, reversed_rows, token_feeds

#: Of one module's activations (or attentions) so many are told apart; the later steps of an unrolled loop are left out.
MAX_CALLS = 4
#: Activations and attentions of a step that are looked at, evenly chosen in forward order.
MAX_NODES = 128
_MAX_FACTS = 24
_LAST = 2**62


@dataclass(slots=True)
class _MeasuredLoss:
    """A loss call, where it is, and what was measured of it."""

    call: LossCall
    module: str
    place: int
    numbers: Numbers
    broadcast: float | torch.Tensor = 0.0


class GraphProbe:
    """Looks at graphs before their backward pass.

    Args:
        name_of: returns (parameter name, module name) of a watched parameter, or None.
        failed: is told of a fault of ours; the probe is then off.
        awaited: whether parameters without a name may get one when the step ends.
    """

    def __init__(
        self,
        name_of: NameOf,
        failed: Callable[[str, Exception], None],
        awaited: Callable[[], bool] = lambda: False,
    ) -> None:
        self.off = False
        self.names = LateNames(name_of, awaited)
        self._name_of = self.names.name_of
        self._failed = failed
        self._units: dict[tuple[str, str, int], Units] = {}
        self._priors = Priors()
        self._embeddings = EmbeddingCounts()
        self._startle = Startle()
        self._carried = CarriedGraph()
        self._facts = 0

    def startled(self, roots: Sequence[torch.Tensor]) -> bool:
        """Whether this pass should be looked at though its step is not a sampled one; see `startle.Startle`.

        Args:
            roots: the tensors on which `backward` is about to be called; to be asked for every pass.
        """
        if self.off or _traced(roots):
            return False
        try:
            return self._startle.notice(roots)
        except Exception as error:
            self._fail(error)
            return False

    def sample(
        self, roots: Sequence[torch.Tensor], walked: Callable[[], GraphWalk] | None = None, *, typical: bool = True
    ) -> list[ModuleSample]:
        """Measure what the graph behind these roots shows.

        Args:
            roots: the tensors on which `backward` is about to be called, in a sampled step.
            walked: returns what a walk from them finds; None to have it walked here.
            typical: False for a step that is looked at because its loss stands out: its labels are no sample of what
                is usual (a rare class makes a loss stand out), and do not count for how frequent each class is.

        Returns:
            Rows of `what` "loss" (`leaf` is the kind of loss, see `facts.LossFact`), "activation" (`leaf` is the
            operation) and "attention", each in forward order and named by the module in front of it; "batch",
            "graph", "embedding", "recurrent", "input" and "backward_in_time" as their files say. Values are on the
            device still, or come with the backward pass; no host synchronisation.
        """
        if self.off or _traced(roots):
            return []
        try:
            with torch.no_grad():
                graph = walk(roots) if walked is None else walked()
                measured = self._measured(roots, remember=typical)
                feeds = token_feeds(graph.nodes, [each.call for each in measured])
                return [
                    *_loss_rows(measured),
                    *input_rows(graph.nodes, self._name_of),
                    *reversed_rows(graph.nodes, feeds, self._name_of),
                    *batch_rows(graph.nodes),
                    *self._carried.rows(graph),
                    *self._embeddings.rows(graph.nodes, self._name_of),
                    *self._inner_rows(graph, feeds),
                    *recurrent_rows(graph.nodes, self._name_of),
                ]
        except Exception as error:  # graphs of any kind may come
            self._fail(error)
            return []

    def loss_facts(self, roots: Sequence[torch.Tensor], step: int = 0) -> list[LossFact]:
        """Describe the loss calls of one of the first steps; reads their numbers on the host (one synchronisation).

        Args:
            roots: the tensors on which `backward` is about to be called.
            step: the optimizer step that this pass belongs to.
        """
        if self.off or self._facts >= _MAX_FACTS or _traced(roots):
            return []
        try:
            with torch.no_grad():
                measured = [*self._measured(roots, remember=False), *self._divergences(roots)]
                made = [_fact(each, step) for each in measured]
        except Exception as error:
            self._fail(error)
            return []
        self._facts += len(made)
        self.names.keep(made)
        return made

    def settle(self, samples: Sequence[ModuleSample]) -> None:
        """The step of these samples has ended: name what could not be named before it."""
        names = self.names.settle(samples)
        if names:
            modules = {token: module or name for token, (name, module) in names.items()}
            self._units = {(modules.get(key[0], key[0]), *key[1:]): held for key, held in self._units.items()}
            self._priors.rename(modules)
            self._embeddings.rename({token: name for token, (name, _) in names.items()})

    def _fail(self, error: Exception) -> None:
        self.off = True
        self._units.clear()
        self._failed("graph samples", error)

    def _measured(self, roots: Sequence[torch.Tensor], *, remember: bool = True) -> list[_MeasuredLoss]:
        made: list[_MeasuredLoss] = []
        for place, call in enumerate(find_losses(roots)):
            module = place_of(call.node, self._name_of).module
            numbers, counts = measure_loss(call)
            if counts is not None:
                key = (module, f"{call.kind}/{place}")
                seen = self._priors.add(key, counts) if remember else self._priors.known(key, counts)
                numbers["baseline"] = prior_entropy(seen)
                numbers["labels_seen"] = seen.sum()
                numbers["classes_seen"] = (seen > 0).sum(0).max()
                numbers["label_entropy"] = prior_entropy(counts)
            broadcast = is_broadcast(call)
            if broadcast is not False:
                numbers.setdefault("count", terms_of(call))
            made.append(_MeasuredLoss(call, module, place, numbers, broadcast))
        return made

    def _divergences(self, roots: Sequence[torch.Tensor]) -> list[_MeasuredLoss]:
        return [
            _MeasuredLoss(call, place_of(call.node, self._name_of).module, place, numbers)
            for place, (call, numbers) in enumerate(find_divergences(roots))
        ]

    def _inner_rows(self, graph: GraphWalk, feeds: TokenFeeds) -> list[ModuleSample]:
        users = _users(graph)
        # Behind the last parameter lies the loss: rectifiers of a hinge, sigmoids of an output, are meant to be flat.
        last = max((use for use in graph.users if use < _LAST), default=-1)
        chosen: list[tuple[Any, bool]] = []
        for node in graph.nodes:
            attention = is_attention(node, users)
            if attention or (is_activation(node) and sequence_number(node) < last):
                chosen.append((node, attention))
        calls: dict[tuple[str, str], int] = {}
        made: list[ModuleSample] = []
        for node, attention in chosen[:: max(1, -(-len(chosen) // MAX_NODES))]:
            row = (
                self._attention_row(node, users, calls, feeds)
                if attention
                else self._activation_row(node, users, calls)
            )
            if row is not None:
                made.append(row)
        return made

    def _attention_row(
        self, node: Any, users: dict[Any, list[Any]], calls: dict[tuple[str, str], int], feeds: TokenFeeds
    ) -> ModuleSample | None:
        numbers = measure_attention(node)
        if not numbers:
            return None
        numbers |= feeds.numbers(node)
        module = place_of(node, self._name_of).module
        call = _next_call(calls, module, "attention")
        if call >= MAX_CALLS:
            return None
        watch_gradients(node, users, numbers)
        return ModuleSample(module, "attention", call, extra=numbers)

    def _activation_row(
        self, node: Any, users: dict[Any, list[Any]], calls: dict[tuple[str, str], int]
    ) -> ModuleSample | None:
        kind = operation(node)
        place = place_of(node, self._name_of)
        call = _next_call(calls, place.module, kind)
        flags = read_flags(node) if call < MAX_CALLS else None
        if flags is None:
            return None
        units = self._units.setdefault((place.module, kind, call), Units())
        axis = unit_axis(flags.values.dim(), operation(place.node))
        numbers, extra = activation_numbers(flags, axis, units)
        extra["gate"] = float(_is_gate(node, users))
        return ModuleSample(place.module, "activation", call, kind, numbers=numbers, extra=extra)


def _loss_rows(measured: Sequence[_MeasuredLoss]) -> list[ModuleSample]:
    return [
        ModuleSample(
            each.module,
            "loss",
            each.place,
            each.call.kind,
            extra=_flags(each) | each.numbers | prediction_spread(each.call),
        )
        for each in measured
    ]


def _next_call(calls: dict[tuple[str, str], int], module: str, kind: str) -> int:
    call = calls.get((module, kind), 0)
    calls[module, kind] = call + 1
    return call


def _users(graph: GraphWalk) -> dict[Any, list[Any]]:
    users: dict[Any, list[Any]] = {}
    for node in graph.nodes:
        for parent, _ in node.next_functions:
            if parent is not None:
                users.setdefault(parent, []).append(node)
    return users


def _is_gate(node: Any, users: dict[Any, list[Any]]) -> bool:
    """Whether an activation is multiplied by something else that was computed: saturated gates are open or shut."""
    return any(
        operation(user) == "Mul" and all(parent is not None for parent, _ in user.next_functions)
        for user in users.get(node, ())
    )


def _flags(measured: _MeasuredLoss) -> dict[str, torch.Tensor | float]:
    call, broadcast = measured.call, measured.broadcast
    return {
        "sum_reduction": float(call.reduction == "sum"),
        "normalized": float(call.normalized),
        "weighted": float(call.weighted),
        "sign": float(call.sign),
        "broadcast": broadcast.float() if isinstance(broadcast, torch.Tensor) else float(broadcast),
        "linear": float(call.feed in ("Addmm", "Mm", "Convolution")),
    }


def _fact(measured: _MeasuredLoss, step: int) -> LossFact:
    call = measured.call
    tensors = [value.float().reshape(()) for value in measured.numbers.values() if isinstance(value, torch.Tensor)]
    read = iter(torch.stack(tensors).cpu().numpy().tolist() if tensors else ())
    numbers = {
        key: float(next(read)) if isinstance(value, torch.Tensor) else float(value)
        for key, value in measured.numbers.items()
    }
    return LossFact(
        step=step,
        kind=call.kind,
        module=measured.module,
        reduction=call.reduction,
        normalized=call.normalized,
        weighted=call.weighted,
        broadcast=bool(measured.broadcast),
        feed=call.feed,
        inner=call.inner,
        numbers={key: value for key, value in numbers.items() if math.isfinite(value)},
    )


def _traced(roots: Sequence[torch.Tensor]) -> bool:
    """Whether these are no ordinary tensors: wrapped by functorch, without values, or being traced."""
    if torch._C._get_tracing_state() is not None:
        return True
    return any(root.is_meta or torch._C._functorch.is_functorch_wrapped_tensor(root) for root in roots)
