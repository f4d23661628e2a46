"""A device that torch takes for an accelerator, whose tensors hold real values: every way to and from it is seen.

torch reserves a kind of device for others to fill in ("PrivateUse1"). Here its tensors wrap tensors on the CPU, and a
dispatch mode runs every operation on those. What lies on the card is therefore right, has a device of its own, and
cannot be read but through an operation that is noted. Copies to the host arrive late, and leave nonsense until then.

It changes torch for the whole process: for a process of its own (see test_card.py).
"""

from __future__ import annotations

import collections
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import gradmedic
from gradmedic import host_copies
from gradmedic.stats import inputs

_setup_privateuseone_for_python_backend("card")
CARD = torch.device("card:0")
OURS = str(Path(gradmedic.__file__).parent)
#: The host waits, or a size follows from a value.
WAITING = {"_local_scalar_dense", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "_unique2", "bincount"}
#: Raise on a CUDA device under `torch.use_deterministic_algorithms(True)`, as torch's documentation lists them.
NOT_DETERMINISTIC = {"cumsum", "histc", "bincount", "kthvalue", "put_", "resize_", "scatter_reduce", "nanmedian"}


class CardTensor(torch.Tensor):
    """A tensor on the card; `there` is its memory."""

    there: torch.Tensor

    @staticmethod
    def __new__(cls, there: torch.Tensor) -> CardTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls, there.shape, strides=there.stride(), storage_offset=there.storage_offset(), dtype=there.dtype,
            device=CARD,
        )  # fmt: skip
        made.there = there
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return card.run(func, args, kwargs or {})


class Card:
    """What has been asked of the device.

    Attributes:
        waits: each moment in which the host waits for it, with the line of ours that asked.
        operations: how often each operation was launched.
        copies: copies to the host that nobody waits for.
        behind: how many of those are under way until the first arrives.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self, behind: int = 2) -> None:
        self.waits: list[str] = []
        self.operations: collections.Counter[str] = collections.Counter()
        self.copies = 0
        self.behind = behind
        self._under_way: collections.deque[CardMark] = collections.deque()
        self._queued: list[tuple[torch.Tensor, torch.Tensor]] = []

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name = func.overloadpacket.__name__
        tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        here = any(isinstance(each, CardTensor) for each in tensors)
        asked = None if kwargs.get("device") is None else torch.device(kwargs["device"]).type
        self._note(name, args, kwargs, here, asked)
        plain_args, plain = tree_map(_there, args), tree_map(_there, kwargs)
        if asked is not None:
            plain["device"] = torch.device("cpu")
        if name == "copy_" and isinstance(args[1], CardTensor) and not isinstance(args[0], CardTensor):
            return self._copy_to_host(args[0], plain_args[1], _non_blocking(args, kwargs))
        result = func(*plain_args, **plain)
        if name == "_local_scalar_dense":
            return result
        if name.endswith("_") and result is plain_args[0]:
            return args[0]
        if "out" in kwargs:
            return kwargs["out"]
        if asked == "cpu" or (asked is None and not here):
            return result
        known = {id(_there(each)): each for each in tensors}
        return tree_map(lambda each: known.get(id(each), each) if id(each) in known else _on_card(each), result)

    def _copy_to_host(self, target: torch.Tensor, values: torch.Tensor, non_blocking: bool) -> torch.Tensor:
        if not non_blocking:
            return target.copy_(values)
        self.copies += 1
        self._queued.append((target, values.clone()))
        return target.fill_(torch.nan)

    def _note(self, name: str, args: Any, kwargs: dict[str, Any], here: bool, asked: str | None) -> None:
        if here or asked == "card":
            self.operations[name] += 1
        by_mask = name == "index" and any(each is not None and each.dtype == torch.bool for each in args[1])
        if here and (name in WAITING or by_mask):
            self._waits(name)
        across = name == "copy_" and isinstance(args[0], CardTensor) != isinstance(args[1], CardTensor)
        across = across or (name == "_to_copy" and asked is not None and (asked == "card") != here)
        # Into memory that torch makes itself, a copy that nobody waits for is handed out before it is written.
        unsafe = name == "_to_copy" and asked == "cpu"
        if across and (unsafe or not _non_blocking(args, kwargs)):
            self._waits(f"{name} to {asked or args[0].device.type}")

    def _waits(self, what: str) -> None:
        ours = [
            line for line in traceback.extract_stack() if "gradmedic" in line.filename and "tests" not in line.filename
        ]
        self.waits.append(f"{what}: {ours[-1].filename.rpartition('gradmedic')[2]}:{ours[-1].lineno}" if ours else what)

    def mark(self, _device: torch.device) -> CardMark:
        queued, self._queued = self._queued, []
        mark = CardMark(self, queued)
        self._under_way.append(mark)
        if len(self._under_way) > self.behind:
            self._under_way.popleft().reach()
        return mark

    def catch_up(self, mark: CardMark) -> None:
        while not mark.reached:
            self._under_way.popleft().reach()


class CardMark:
    """An event on the card."""

    def __init__(self, device: Card, queued: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        self._device, self._queued = device, queued
        self.reached = False

    def query(self) -> bool:
        return self.reached

    def synchronize(self) -> None:
        self._device._waits("synchronize")
        self._device.catch_up(self)

    def reach(self) -> None:
        for target, values in self._queued:
            target.copy_(values)
        self.reached = True


class OnCard(TorchDispatchMode):
    """Lets operations that make tensors make them on the card."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return card.run(func, args, kwargs or {})


def _non_blocking(args: Any, kwargs: dict[str, Any]) -> bool:
    return bool(kwargs.get("non_blocking") or (len(args) > 2 and args[2] is True))


def _there(each: Any) -> Any:
    return each.there if isinstance(each, CardTensor) else each


def _on_card(each: Any) -> Any:
    return CardTensor(each) if isinstance(each, torch.Tensor) and not isinstance(each, CardTensor) else each


def to_card(model: nn.Module, but: str | None = None) -> nn.Module:
    """Move a model's parameters to the card, but for those of the module of that name."""
    for path, module in model.named_modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and path != but:
                module._parameters[name] = nn.Parameter(CardTensor(parameter.detach().clone()))
    return model


card = Card()
host_copies.MARKS["card"] = card.mark
host_copies._pinned = lambda size: torch.zeros(size, dtype=torch.uint8)
_plain = inputs._plain
# A card's own tensors are no subclass; here they have to be one.
inputs._plain = lambda tensor, called: tensor.detach() if isinstance(tensor, CardTensor) else _plain(tensor, called)
