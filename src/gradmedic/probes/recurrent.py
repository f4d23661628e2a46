"""Gradients of a recurrent net by time step: hooks on the nodes that use the recurrent weight, for one backward pass.

A weight that the forward pass has used again and again, each time on what the use before has led to, is recurrent:
`nn.RNN` and `nn.GRU` where torch does not fuse them, cells called in a loop, and loops that are written by hand all
show it. The gradient of such a product's output is that of the state before its activation, with everything that
comes back from later steps; the gradient of the module's output shows the loss's direct part only.

Fused layers (`nn.LSTM` on a CPU, everything under cuDNN) are one node: only where their input takes a gradient can it
be told by time step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from gradmedic.probes.graph import sequence_number
from gradmedic.probes.module_stats import ModuleSample
from gradmedic.probes.node_places import NameOf
from gradmedic.probes.node_values import behind, operation, parent, setting

#: Fewer uses of one weight are no time axis.
MIN_STEPS = 8
#: Points of the time axis that are measured, evenly spaced from the first to the last step.
POINTS = 9
#: Recurrent weights that are looked at in one graph.
MAX_WEIGHTS = 16
#: Nodes between two successive uses, at most.
_MAX_BETWEEN = 64
#: Which inputs of a product may be the weight.
_WEIGHTS: dict[str, tuple[int, ...]] = {"Addmm": (2, 1), "Mm": (1, 0), "Addmv": (1,), "Mv": (0,)}
_FUSED = ("MkldnnRnnLayer", "CudnnRnn")


def recurrent_rows(nodes: Sequence[Any], name_of: NameOf) -> list[ModuleSample]:
    """Have the gradients of the coming backward pass measured by time step.

    Args:
        nodes: the graph's nodes in forward order.
        name_of: returns (parameter name, module name) of a watched parameter, or None.

    Returns:
        Rows of `what` "recurrent", `leaf` the weight's own name; `extra` holds "steps" (length of the time axis) and
        "time_0" to "time_8", L2 norms (fp64 where the device has it) from the first step to the last: NaN until the
        backward pass has come by. Nothing that flows back is changed; hooks act once and die with the graph.
    """
    made = [_watch_chain(chain, *name) for name, chain in _chains(nodes, name_of)]
    made += [_watch_fused(node, name_of) for node in nodes if operation(node) in _FUSED and _takes_gradient(node)]
    return made[:MAX_WEIGHTS]


def _chains(nodes: Sequence[Any], name_of: NameOf) -> Iterator[tuple[tuple[str, str], list[Any]]]:
    uses: dict[int, tuple[torch.Tensor, list[Any]]] = {}
    for node in nodes:
        for place in _WEIGHTS.get(operation(node), ()):
            leaf = getattr(behind(parent(node, place)), "variable", None)
            if leaf is not None:
                uses.setdefault(id(leaf), (leaf, []))[1].append(node)
    for leaf, chain in uses.values():
        if len(chain) >= MIN_STEPS and _follow_each_other(chain):
            name = name_of(leaf)
            if name is not None:
                yield name, chain


def _follow_each_other(chain: Sequence[Any]) -> bool:
    """Whether later uses work on what earlier ones have led to, judged by the first pair and the middle one."""
    middle = len(chain) // 2
    return _leads_to(chain[0], chain[1]) and _leads_to(chain[middle - 1], chain[middle])


def _leads_to(early: Any, late: Any) -> bool:
    floor = sequence_number(early)
    queue, seen = [late], {late}
    for node in queue:
        for above, _ in node.next_functions:
            if above is early:
                return True
            if above is not None and above not in seen and floor < sequence_number(above) < 2**62:
                seen.add(above)
                queue.append(above)
        if len(seen) > _MAX_BETWEEN:
            break
    return False


def _watch_chain(chain: Sequence[Any], name: str, module: str) -> ModuleSample:
    sample = _sample(name, module, len(chain))
    for point in range(POINTS):
        node = chain[round(point * (len(chain) - 1) / (POINTS - 1))]
        node.register_prehook(_note(sample, point))
    return sample


def _note(sample: ModuleSample, point: int) -> Callable[[Sequence[torch.Tensor | None]], None]:
    open_ = [True]

    def note(gradients: Sequence[torch.Tensor | None]) -> None:
        gradient = gradients[0] if gradients else None
        if open_[0] and gradient is not None:
            open_[0] = False  # the graph may be used again (retain_graph)
            sample.extra[f"time_{point}"] = _norm(gradient)

    return note


def _takes_gradient(node: Any) -> bool:
    steps = _time_steps(node)
    return parent(node) is not None and steps is not None and steps >= MIN_STEPS


def _time_steps(node: Any) -> int | None:
    given = getattr(node, "_saved_input", None)
    if not isinstance(given, torch.Tensor) or given.dim() != 3 or setting(node, "batch_sizes"):
        return None
    return int(given.shape[_time_axis(node)])


def _time_axis(node: Any) -> int:
    # MkldnnRnnLayer is always given [T, B, F]; cuDNN has a flag of its own.
    return 1 if operation(node) == "CudnnRnn" and setting(node, "batch_first") else 0


def _watch_fused(node: Any, name_of: NameOf) -> ModuleSample:
    steps, axis = _time_steps(node) or 0, _time_axis(node)
    named = [found for each, _ in node.next_functions if (found := _name(each, name_of)) is not None]
    # The second weight of a layer is the recurrent one.
    name, module = named[1] if len(named) > 1 else ("", "")
    sample = _sample(name, module, steps)
    open_ = [True]

    def note(gradients: Sequence[torch.Tensor | None], _outputs: Sequence[torch.Tensor | None]) -> None:
        gradient = gradients[0] if gradients else None
        if not open_[0] or gradient is None or gradient.dim() != 3 or gradient.shape[axis] != steps:
            return
        open_[0] = False
        for point in range(POINTS):
            at = round(point * (steps - 1) / (POINTS - 1))
            sample.extra[f"time_{point}"] = _norm(gradient.select(axis, at))

    node.register_hook(note)
    return sample


def _name(node: Any, name_of: NameOf) -> tuple[str, str] | None:
    leaf = getattr(node, "variable", None)
    return None if leaf is None else name_of(leaf)


def _sample(name: str, module: str, steps: int) -> ModuleSample:
    sample = ModuleSample(module, "recurrent", leaf=name.rpartition(".")[2])
    sample.extra |= {"steps": float(steps)}
    sample.extra |= {f"time_{point}": float("nan") for point in range(POINTS)}
    return sample


@torch.no_grad()
def _norm(gradient: torch.Tensor) -> torch.Tensor:
    # Squares of what a hundred steps have shrunk or blown up leave the range of fp32.
    wide = torch.float32 if gradient.device.type == "mps" else torch.float64
    norm: torch.Tensor = torch.linalg.vector_norm(gradient.detach(), dtype=wide)
    return norm
