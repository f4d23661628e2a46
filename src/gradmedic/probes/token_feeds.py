"""Which parts of a graph see which token ids, and whether the targets are those ids, moved on by one place.

A model that is to predict the next token must not see it. Attention and recurrent layers that look ahead are none of
our business where something else is predicted, or where they read another text (an encoder).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gradmedic.probes.graph import direct_leaves
from gradmedic.probes.loss_graph import LossCall
from gradmedic.probes.module_stats import ModuleSample
from gradmedic.probes.node_places import NameOf, place_of
from gradmedic.probes.node_values import operation, saved, setting

Numbers = dict[str, torch.Tensor | float]

#: Sequences shorter than this, and further embeddings, say nothing.
MIN_LENGTH = 4
MAX_EMBEDDINGS = 8
#: Larger graphs are those of long unrolled loops; to follow ids through one takes longer than its backward pass.
MAX_NODES = 20_000
#: Operations that leave every token where it is, before anything mixes them: embeddings that are added up are one.
_POINTWISE = frozenset((
    "Add", "Mul", "Div", "NativeDropout", "NativeLayerNorm", "View", "UnsafeView", "Reshape", "Transpose", "Permute",
    "Clone", "ToCopy", "Unsqueeze", "Squeeze", "Embedding", "Alias", "Expand",
))  # fmt: skip
_RECURRENT = ("MkldnnRnnLayer", "CudnnRnn", "MiopenRnn")


@dataclass(slots=True)
class TokenFeeds:
    """Which embeddings of token ids feed each node.

    Attributes:
        masks: node -> bits of the groups of embeddings behind it.
        groups: of each group: its number, the ids' shape, and what `next_token_numbers` measured.
    """

    masks: dict[Any, int] = field(default_factory=dict)
    groups: dict[int, tuple[int, Numbers]] = field(default_factory=dict)

    def numbers(self, node: Any) -> Numbers:
        """Return what is known of the one text that a node reads; empty where it reads none, or several."""
        mask = self.masks.get(node, 0)
        return self.groups[mask][1] if mask in self.groups else {}


@torch.no_grad()
def token_feeds(nodes: Sequence[Any], calls: Sequence[LossCall]) -> TokenFeeds:
    """Follow token ids through a graph.

    Args:
        nodes: the graph's nodes in forward order, before the backward pass.
        calls: its loss calls.

    Returns:
        Empty where no loss has classes as targets, nothing embeds ids, or the graph is very large. No host
        synchronisation.
    """
    if len(nodes) > MAX_NODES:
        return TokenFeeds()
    target = next((found for call in calls if (found := _targets(call)) is not None), None)
    embeddings: list[tuple[Any, torch.Tensor]] = []
    for node in nodes:
        ids = _token_ids(node) if target is not None and len(embeddings) < MAX_EMBEDDINGS else None
        if ids is not None:
            embeddings.append((node, ids))
    if target is None or not embeddings:
        return TokenFeeds()
    masks, groups = _follow(nodes, [node for node, _ in embeddings])
    feeds = TokenFeeds(masks)
    for place, (_, ids) in enumerate(embeddings):
        mask = groups(1 << place)
        numbers = next_token_numbers(ids, target)
        if numbers and mask not in feeds.groups:
            numbers["group"] = float(place)
            feeds.groups[mask] = (place, numbers)
        elif numbers:  # token types beside tokens: the embedding whose ids are the targets counts
            known = feeds.groups[mask][1]
            for key in ("next_share", "same_share"):
                known[key] = torch.maximum(torch.as_tensor(known[key]), torch.as_tensor(numbers[key]))
    return feeds


def next_token_numbers(ids: torch.Tensor, target: torch.Tensor) -> Numbers:
    """Compare token ids with targets.

    Args:
        ids: [batch, time] or [time, batch].
        target: classes, in the order of the ids or without the last (or first) place of time; -100 is left out.

    Returns:
        "next_share" (share of the targets that are the next id), "same_share" (that are the id at their own place),
        "kept_share" (targets that are not left out), "length"; empty where the shapes do not fit. No host sync.
    """
    found = [numbers for axis in (1, 0) if (numbers := _along(ids, target, axis)) is not None]
    if not found:
        return {}
    if len(found) == 1:
        return found[0]
    first, second = found
    # Square batches: whichever axis fits is time.
    made: Numbers = {"kept_share": first["kept_share"], "length": first["length"]}
    for key in ("next_share", "same_share"):
        made[key] = torch.maximum(torch.as_tensor(first[key]), torch.as_tensor(second[key]))
    return made


def _along(ids: torch.Tensor, target: torch.Tensor, axis: int) -> Numbers | None:
    length = ids.shape[axis]
    moved = ids if axis == 1 else ids.t()  # [batch, time]
    batch = moved.shape[0]
    places = next((each for each in (length, length - 1) if target.numel() == batch * each), 0)
    if length < MIN_LENGTH or not places:
        return None
    wanted = target.reshape(batch, places) if axis == 1 else target.reshape(places, batch).t()
    kept = wanted != -100
    following = kept[:, : length - 1]
    count = following.sum().clamp(min=1)
    return {
        "next_share": ((wanted[:, : length - 1] == moved[:, 1:]) & following).sum() / count,
        "same_share": ((wanted == moved[:, :places]) & kept).sum() / kept.sum().clamp(min=1),
        "kept_share": kept.float().mean(),
        "length": float(length),
    }


@torch.no_grad()
def reversed_rows(nodes: Sequence[Any], feeds: TokenFeeds, name_of: NameOf) -> list[ModuleSample]:
    """Return one row (`what` "backward_in_time") for each recurrent layer that reads a text from its end."""
    made: dict[str, ModuleSample] = {}
    if not feeds.groups:
        return []
    for node in nodes:
        numbers = feeds.numbers(node)
        if numbers and _reads_backward(node, name_of):
            module = place_of(node, name_of).module
            made.setdefault(module, ModuleSample(module, "backward_in_time", len(made), operation(node), extra=numbers))
    return list(made.values())


def _reads_backward(node: Any, name_of: NameOf) -> bool:
    kind = operation(node)
    if kind == "MkldnnRnnLayer":
        return bool(setting(node, "reverse"))
    if kind in _RECURRENT:
        return bool(setting(node, "bidirectional"))
    if kind not in ("Addmm", "Mm", "Add"):
        return False
    names = (name_of(leaf) for leaf in direct_leaves(node))  # torch names the weights of the second direction so
    return any(found is not None and found[0].endswith("_reverse") for found in names)


def _follow(nodes: Sequence[Any], embeddings: list[Any]) -> tuple[dict[Any, int], Callable[[int], int]]:
    """Return for each node the groups of embeddings behind it, and a function from an embedding's bit to its group."""
    bits = {node: 1 << place for place, node in enumerate(embeddings)}
    group = {bit: bit for bit in bits.values()}
    masks: dict[Any, int] = {}
    pointwise: set[Any] = set(bits)
    for node in nodes:
        behind = [parent for parent, _ in node.next_functions if parent is not None and masks.get(parent)]
        mask = bits.get(node, 0)
        for parent in behind:
            mask |= masks[parent]
        if not mask:
            continue
        masks[node] = mask
        if operation(node) in _POINTWISE and all(parent in pointwise for parent in behind):
            pointwise.add(node)
            if mask & (mask - 1) == 0:
                continue
            joined = 0
            for bit in group:
                joined |= group[bit] if bit & mask else 0
            group = {bit: joined if bit & joined else whole for bit, whole in group.items()}

    def whole(mask: int) -> int:
        made = 0
        for bit, of_bit in group.items():
            made |= of_bit if bit & mask else 0
        return made

    known = {mask: whole(mask) for mask in set(masks.values())}
    return {node: known[mask] for node, mask in masks.items()}, whole


def _token_ids(node: Any) -> torch.Tensor | None:
    if operation(node) != "Embedding":
        return None
    ids = saved(node, "indices")
    if ids is None or ids.dim() != 2 or min(ids.shape) < 1 or 0 in ids.stride():
        return None
    return ids


def _targets(call: LossCall) -> torch.Tensor | None:
    if call.kind not in ("cross_entropy", "nll"):
        return None
    if operation(call.node) != "LogSoftmax":
        return saved(call.node, "target", near_loss=True)
    return saved(call.user, "index", near_loss=True) if operation(call.user) == "Gather" else None
