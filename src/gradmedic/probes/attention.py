"""Attention, however it was computed: how large its logits are, and how much of the sequence a head looks at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gradmedic.probes.attention_heads import by_head, largest_by_head
from gradmedic.probes.node_values import behind, operation, parent, saved, scalar, setting
from gradmedic.stats.native_readings import attend

#: Matrices (heads of samples) and query rows of each that are looked at, at most.
MAX_MATRICES = 16
MAX_ROWS = 32
#: A head whose entropy is below this share of ln T looks at next to nothing (rules.md).
LOW_ENTROPY = 0.05
_MAX_KEYS = 2**14
_MAX_USERS = 32
#: What may lie between the weights and their product with the values.
_BETWEEN = frozenset(
    {"View", "UnsafeView", "Reshape", "Expand", "Mul", "ToCopy", "NativeDropout", "Clone", "Transpose", "MaskedFill"}
)

Numbers = dict[str, torch.Tensor | float]
#: The nodes that use a node's output.
Users = Mapping[Any, Sequence[Any]]


def is_attention(node: Any, users: Users) -> bool:
    """Whether a node is attention: torch's own, or a softmax over the last dimension that a batched product uses."""
    kind = operation(node)
    if kind.startswith("ScaledDotProduct"):
        return True
    return kind in ("Softmax", "SafeSoftmax") and setting(node, "dim") == -1 and _feeds_product(node, users)


def _feeds_product(node: Any, users: Users) -> bool:
    queue = list(users.get(node, ()))
    for each in queue:
        kind = operation(each)
        if kind == "Bmm":
            return True
        if len(queue) < _MAX_USERS and kind in _BETWEEN:
            queue.extend(users.get(each, ()))
    return False


@torch.no_grad()
def measure_attention(node: Any) -> Numbers:
    """Measure an attention on a few of its heads and queries.

    Args:
        node: the node, before its backward pass.

    Returns:
        "heads" (matrices that were looked at), "entropy" and "entropy_min" (mean over queries of the later half, over
        ln T; mean and least of the heads), "low_heads" (share of heads below 0.05), "ahead" (share of the weight that
        lies on later places, mean over all queries but the last) and "keys" where there are as many queries as keys,
        "max_logit", "unscaled" (1.0 where nothing divides the products), "factor" (what the products are multiplied by;
        NaN where that is computed) and "depth" (size of a head) when they can be had; "entropy.h" and "max_logit.h" of
        head h where heads can be told from samples; empty when nothing was saved. No host sync.
    """
    if operation(node).startswith("ScaledDotProduct"):
        return _fused(node)
    return _written_out(node)


def _first_late(positions: Sequence[int], queries: int) -> int:
    """Return which row is the first of the later half.

    Under a causal mask the first queries see few keys whatever they do; the later half see at least T/2.
    """
    return next((at for at, position in enumerate(positions) if position >= queries // 2), 0)


def _entropy(late: torch.Tensor, heads_each: int = 0) -> Numbers:
    """Return the entropy of attention weights [M, R, S] of queries of the later half.

    `heads_each` heads of one sample follow each other; 0 where that is not known.
    """
    matrices, _, keys = late.shape
    heads = torch.special.entr(late).sum(-1).mean(-1) / math.log(keys)
    low = (heads < LOW_ENTROPY).to(torch.float32).mean()
    numbers: Numbers = {"heads": float(matrices), "entropy": heads.mean(), "entropy_min": heads.min(), "low_heads": low}
    if heads_each and matrices % heads_each == 0:
        numbers |= by_head("entropy", heads.view(-1, heads_each))
    return numbers


def _ahead(weights: torch.Tensor, positions: range) -> Numbers:
    """Return how much of the weight [M, R, S] of queries at `positions` lies on later places of their own sequence."""
    keys = weights.shape[-1]
    able = sum(position < keys - 1 for position in positions)  # nothing lies ahead of the last one
    ahead = weights.mean(0).masked_fill_(~_later(positions, keys, weights.device), 0.0).sum()
    return {"ahead": ahead / max(able, 1), "keys": float(keys)}


def _later(positions: range, keys: int, device: torch.device) -> torch.Tensor:
    """Return which of the keys [R, S] lie behind each of these places."""
    rows = torch.arange(positions.start, positions.stop, positions.step, device=device)
    return torch.arange(keys, device=device)[None, :] > rows[:, None]


# -- torch's own ------------------------------------------------------------------------------------------------------


def _fused(node: Any) -> Numbers:
    query, key = saved(node, "query"), saved(node, "key")
    if query is None or key is None or query.dim() != 4 or key.dim() != 4 or not 2 <= key.shape[2] <= _MAX_KEYS:
        return {}
    queries, keys, depth = query.shape[2], key.shape[2], query.shape[3]
    samples = max(1, MAX_MATRICES // query.shape[1])
    positions = range(0, queries, -(-queries // MAX_ROWS))
    q = query[:samples, :, :: positions.step].float()
    k = key[:samples].float()
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        return {}
    given = setting(node, "scale")
    scale = float(given) if isinstance(given, (int, float)) else 1 / math.sqrt(depth)
    causal = bool(setting(node, "is_causal"))
    first = _first_late(positions, queries)
    setup = {"unscaled": float(depth >= 8 and scale >= 0.99), "factor": scale, "depth": float(depth)}
    read = attend(q, k, scale, step=positions.step, first=first, causal=causal) if _is_unmasked(node) else None
    if read is not None:
        return _read_numbers(read, keys, square=queries == keys) | setup
    k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1) if q.shape[1] != k.shape[1] else k
    logits = (q @ k.transpose(-2, -1)).mul_(scale)
    if causal:
        logits.masked_fill_(_later(positions, keys, q.device), -math.inf)
    masked = _with_mask(node, logits, samples, queries)
    if masked is None:
        return {}
    # Under the causal mask nothing lies ahead, and the earlier half is not needed.
    weights = (masked[:, :, first:] if causal else masked).softmax(-1)
    weights = weights.nan_to_num_().flatten(0, 1)  # rows that see nothing are NaN
    numbers = _entropy(weights if causal else weights[:, first:], masked.shape[1])
    if queries == keys:
        numbers |= {"ahead": 0.0, "keys": float(keys)} if causal else _ahead(weights, positions)
    return numbers | largest_by_head("max_logit", masked) | setup


def _read_numbers(read: npt.NDArray[np.float64], keys: int, *, square: bool) -> Numbers:
    """Return the numbers of what the kernel has read [3, samples, heads]."""
    heads, largest, ahead = read
    heads = heads / math.log(keys)
    numbers: Numbers = {
        "heads": float(heads.size),
        "entropy": float(heads.mean()),
        "entropy_min": float(heads.min()),
        "low_heads": float((heads < LOW_ENTROPY).mean()),
        **by_head("entropy", torch.from_numpy(heads)),
    }
    if square:
        numbers |= {"ahead": float(ahead.mean()), "keys": float(keys)}
    return numbers | largest_by_head("max_logit", torch.from_numpy(largest))


def _with_mask(node: Any, logits: torch.Tensor, samples: int, queries: int) -> torch.Tensor | None:
    """Add the mask's part for the rows that were chosen; None where there is a mask that cannot be read."""
    name = _mask_name(node)
    mask = saved(node, name) if name is not None else None
    if mask is None:
        return logits if name is None or _is_empty(node, name) else None
    while mask.dim() < 4:
        mask = mask[None]
    mask = mask[: samples if mask.shape[0] > 1 else 1]
    mask = mask[:, :, :: -(-queries // MAX_ROWS)] if mask.shape[2] > 1 else mask
    return logits.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else logits + mask


def _mask_name(node: Any) -> str | None:
    """Return the name under which a node may have saved a mask; None where there is no place for one."""
    return next((name for name in ("attn_mask", "attn_bias") if getattr(node, f"_raw_saved_{name}", None)), None)


def _is_unmasked(node: Any) -> bool:
    name = _mask_name(node)
    return name is None or (saved(node, name) is None and _is_empty(node, name))


def _is_empty(node: Any, name: str) -> bool:
    try:
        return getattr(node, f"_saved_{name}") is None
    except RuntimeError:
        return False


# -- written out -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Product:
    """The product of queries and keys behind a softmax.

    Attributes:
        node: the node that multiplies them.
        factor: what their product was multiplied by since.
        scaled: whether it, or one of them, was multiplied or divided at all.
        before: what queries and keys were multiplied by themselves; NaN where that is more than a number.
    """

    node: Any
    factor: float
    scaled: bool
    before: float


def _written_out(node: Any) -> Numbers:
    weights = saved(node, "result")
    if weights is None or weights.dim() < 3 or not 2 <= weights.shape[-1] <= _MAX_KEYS or weights.shape[-2] < 2:
        return {}
    queries, keys = weights.shape[-2:]
    total = weights.numel() // (queries * keys)
    heads = slice(None, None, -(-total // MAX_MATRICES))
    rows = slice(None, None, -(-queries // MAX_ROWS))
    each = weights.shape[-3] if weights.dim() == 4 and total <= MAX_MATRICES else 0
    if not each and weights.dim() == 4 and weights.shape[1] <= MAX_MATRICES:  # whole samples, that heads stay apart
        each = weights.shape[1]
        heads = slice(0, MAX_MATRICES // each * each)
    flat = weights.reshape(total, queries, keys)[heads, rows].float()
    positions = range(0, queries, rows.step)
    numbers = _entropy(flat[:, _first_late(positions, queries) :], each)
    if queries == keys:
        numbers |= _ahead(flat, positions)
    product = _product_behind(behind(parent(node)))
    if product is None:
        return numbers
    numbers["unscaled"] = float(not product.scaled)
    q, k = saved(product.node, "self"), saved(product.node, "mat2")
    if q is not None and k is not None and (q.shape[0], q.shape[1], k.shape[2]) == (total, queries, keys):
        logits = (q[heads, rows].float() @ k[heads].float()) * product.factor
        visible = torch.where(flat > 0, logits, -math.inf)
        if each:
            numbers |= largest_by_head("max_logit", visible.view(-1, each, *visible.shape[1:]))
        else:
            numbers["max_logit"] = visible.amax()
        numbers |= {"factor": product.factor * product.before, "depth": float(q.shape[2])}
    return numbers


def _product_behind(node: Any) -> _Product | None:
    """Look behind a softmax, through masks and factors, for the batched product."""
    factor, scaled = 1.0, False
    for _ in range(8):
        kind = operation(node)
        if kind == "Bmm":
            sides = [_scale_of(behind(parent(node, side))) for side in (0, 1)]
            return _Product(
                node,
                factor,
                scaled or sides != [None, None],
                math.prod(1.0 if side is None else side for side in sides),
            )
        if kind == "Baddbmm":
            return None
        if kind in ("Mul", "Div"):
            value = _scale_of(node)
            if value is None or not math.isfinite(value):
                return None
            factor, scaled = factor * value, True
        elif kind not in ("Add", "MaskedFill", "Where"):
            return None
        inputs = [behind(each) for each, _ in node.next_functions]
        node = next((each for each in inputs if each is not None and not hasattr(each, "variable")), None)
    return None


def _scale_of(node: Any) -> float | None:
    """Return what a node multiplies by: NaN where that is no number on the host, None where it does not multiply."""
    kind = operation(node)
    if kind not in ("Mul", "Div"):
        return None
    value = scalar(node, "other")
    if value is None or not value:
        return math.nan
    return value if kind == "Mul" else 1 / value
