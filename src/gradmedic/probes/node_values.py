"""What nodes of the autograd graph keep for the backward pass, read without disturbing it."""

from __future__ import annotations

from typing import Any

import torch

from gradmedic.stats.parts import has_memory

_PLAIN = (torch.Tensor, torch.nn.Parameter)

#: Operations that hand on what they were given, in another shape, order, type or choice.
_VIEWS = (
    "View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Transpose", "Permute", "TBackward",
    "Alias", "Slice", "Select", "Expand", "_DDPSink",
)  # fmt: skip
#: Those among them that also keep every element in its place.
_RESHAPES = ("View", "UnsafeView", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias", "_DDPSink")


#: Names by type of node, of those types that torch has made for one operation: to ask a node for its name is dear.
_NAMES: dict[type, str] = {}


def operation(node: Any) -> str:
    """Return a node's operation without its suffix: "Softmax" for "SoftmaxBackward0"; "" for a leaf or no node."""
    known = _NAMES.get(type(node))
    if known is not None:
        return known
    if node is None or hasattr(node, "variable"):
        return ""
    name = str(node.name())
    made = name.partition("Backward")[0]
    kind = type(node)
    if kind.__name__ == name and kind.__module__ == "builtins":  # not a user's own, whose types come and go
        _NAMES[kind] = made
    return made


def saved(node: Any, name: str, *, near_loss: bool = False) -> torch.Tensor | None:
    """Return a tensor that a node has saved, detached; None where it cannot be had for nothing.

    Tensors under saved-tensor hooks are left alone: to unpack one of a checkpointed region computes that region anew.
    Versions of torch that do not tell whether there are such hooks show the loss only, which is hardly ever among them.

    Args:
        node: a node of the graph.
        name: the name torch gives the tensor: "self", "result", "target", ...
        near_loss: whether the node belongs to the loss.
    """
    raw = getattr(node, f"_raw_saved_{name}", None)
    if raw is None or getattr(raw, "unpack_hook", None if near_loss else raw) is not None:
        return None
    try:
        tensor = getattr(node, f"_saved_{name}")
    except (RuntimeError, AttributeError):  # freed, or changed in place since
        return None
    if not isinstance(tensor, torch.Tensor) or type(tensor) not in _PLAIN:
        return None
    tensor = tensor.detach()
    there = tensor.layout is torch.strided and not tensor.is_meta and tensor.numel() > 0
    if not there or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return None
    return tensor if has_memory(tensor) else None


def setting(node: Any, name: str) -> Any:
    """Return a saved value that is no tensor (a dimension, a reduction); None where there is none.

    Torch hands out negative numbers as unsigned ones: -100 comes as 2**64 - 100.
    """
    try:
        value = getattr(node, f"_saved_{name}", None)
    except RuntimeError:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 2**63:
        return value - 2**64
    return value


def scalar(node: Any, name: str) -> float | None:
    """Return a saved factor or divisor that is one number on the host; None for anything else."""
    value = saved(node, name, near_loss=True)
    if value is None:
        plain = setting(node, name)
        return float(plain) if isinstance(plain, (int, float)) else None
    if value.dim() or value.device.type != "cpu" or value.is_complex():
        return None
    return float(value)


def parent(node: Any, place: int = 0) -> Any:
    """Return the node behind one of a node's inputs; None for constants and beyond the last input."""
    inputs = () if node is None else node.next_functions
    return inputs[place][0] if place < len(inputs) else None


def behind(node: Any, *, in_place: bool = False) -> Any:
    """Return the nearest node, from this one on, that is more than a view; None where there is none.

    Args:
        node: where to begin; it is returned itself when it computes something.
        in_place: look through operations only that keep every element where it is.
    """
    names = _RESHAPES if in_place else _VIEWS
    while node is not None and node.name().startswith(names):
        node = parent(node)
    return node


def leaf_behind(node: Any) -> torch.Tensor | None:
    """Return the leaf behind a node, through views and casts; None where something was computed for it."""
    leaf = getattr(behind(node), "variable", None)
    if not isinstance(leaf, torch.Tensor) or (leaf.layout is torch.strided and leaf.numel() and not has_memory(leaf)):
        return None
    return leaf.detach()


def linear_output(node: Any, rows: int | None = None) -> torch.Tensor | None:
    """Compute the output of a linear layer again from what it has saved.

    Args:
        node: the layer's node (`Addmm` or `Mm`).
        rows: how many of its rows, evenly spread; None for all.

    Returns:
        [rows, features], on the layer's device and in its dtype; None where an operand was not saved.
    """
    kind = operation(node)
    if kind not in ("Addmm", "Mm"):
        return None
    given = saved(node, "mat1" if kind == "Addmm" else "self")
    weight = saved(node, "mat2")
    if weight is None:  # saved only where the layer's input takes a gradient
        leaf = leaf_behind(parent(node, 2 if kind == "Addmm" else 1))
        weight = None if leaf is None or leaf.dim() != 2 else leaf.t()
    if given is None or weight is None or given.shape[1] != weight.shape[0] or given.dtype != weight.dtype:
        return None
    if rows is not None and rows < given.shape[0]:
        given = given[:: -(-given.shape[0] // rows)]
    made = given @ weight
    if kind == "Mm":
        return made
    bias = leaf_behind(parent(node, 0))
    return None if bias is None else made + bias.to(made.dtype)
