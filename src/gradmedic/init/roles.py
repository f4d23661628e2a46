"""Which scheme suits a parameter: by the kind of its module, its name, and what follows it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradmedic.clip.spec import kinds_of
from gradmedic.init.gains import fans, he_std, is_relu_like, xavier_std
from gradmedic.init.wiring import Wiring

#: Standard deviation of embeddings in transformers since GPT-1 (Radford et al. 2018).
EMBEDDING_STD = 0.02
#: The last layer's, as a share of 1 / sqrt(fan_in): outputs then begin at a quarter of the features' size.
OUTPUT_SHARE = 0.25

_FUSED = re.compile(r"(qkv|c_attn|in_proj|query_key_value)", re.IGNORECASE)
_VECTORS = re.compile(r"^(w?pos|wpe|cls|class|mask|query|token|embed)", re.IGNORECASE)
#: Gates of a recurrent layer, by class.
_GATES = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3}


@dataclass(frozen=True, slots=True)
class Target:
    """What a parameter should be; see `Suggestion`."""

    scheme: str
    std: float
    mean: float
    reason: str
    gates: int = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where a parameter is.

    Attributes:
        name: its qualified name.
        key: its name within its module.
        module: the module that owns it.
        owners: classes of all modules that share it.
    """

    name: str
    key: str
    module: nn.Module
    owners: tuple[str, ...]


KEEP = Target("keep", 0.0, 0.0, "not of a known kind")


def target_of(place: Place, parameter: torch.Tensor, wiring: Wiring) -> Target:
    """Return what suits a parameter.

    Args:
        place: where it is.
        parameter: it.
        wiring: how the model uses its parameters.
    """
    if not parameter.requires_grad:
        return Target("keep", 0.0, 0.0, "frozen")
    kinds = kinds_of(place.module)
    if "RNN" in kinds:
        return _recurrent(place, parameter)
    if any("Embedding" in owner for owner in place.owners):
        tied = len(place.owners) > 1
        return _embedding(parameter, "shared with the output layer" if tied else "a table of vectors", small=tied)
    if "norm" in kinds:
        return _norm(place, parameter, wiring)
    if place.key.endswith("bias") or place.key.startswith("bias"):
        return Target("zeros", 0.0, 0.0, "a bias")
    if parameter.dim() >= 2:
        return _weight(place, parameter, wiring)
    return KEEP


def _recurrent(place: Place, parameter: torch.Tensor) -> Target:
    kind = next((base.__name__ for base in type(place.module).__mro__ if base.__name__ in _GATES), "RNN")
    gates = _GATES.get(kind, 1)
    if place.key.startswith("bias"):
        if gates == 4:
            forget = 1.0 if place.key.startswith("bias_ih") else 0.0
            return Target("forget", 0.0, forget, "an LSTM's bias; the forget gate begins open", gates)
        return Target("zeros", 0.0, 0.0, "a bias")
    rows, columns = parameter.shape[0] // gates, parameter.shape[1]
    if place.key.startswith("weight_hh"):
        # A block with orthonormal rows or columns: its squares sum to the smaller side.
        std = math.sqrt(min(rows, columns) / (rows * columns))
        return Target("orthogonal", std, 0.0, "from one time step to the next", gates)
    return Target("xavier", xavier_std(columns, rows), 0.0, "into a recurrent layer", gates)


def _embedding(parameter: torch.Tensor, reason: str, *, small: bool) -> Target:
    width = parameter.shape[-1]
    return Target("embedding", EMBEDDING_STD if small else 1 / math.sqrt(width), 0.0, reason)


def _norm(place: Place, parameter: torch.Tensor, wiring: Wiring) -> Target:
    if place.key.endswith("bias"):
        return Target("zeros", 0.0, 0.0, "a norm's shift")
    if id(parameter) in wiring.branch_ends:
        # Goyal et al. 2017, arXiv:1706.02677, section 5.1: every block begins as the identity.
        return Target("zeros", 0.0, 0.0, "last norm of a residual branch")
    return Target("ones", 0.0, 1.0, "a norm's scale") if place.key.endswith("weight") else KEEP


def _weight(place: Place, parameter: torch.Tensor, wiring: Wiring) -> Target:
    key = id(parameter)
    kind = type(place.module).__name__
    if key not in wiring.follows and key not in wiring.outputs | wiring.branch_ends:
        if _VECTORS.search(place.key) and not _is_layer(place.module):
            return _embedding(parameter, "learned vectors", small=True)
        if not _is_layer(place.module):
            return KEEP
    turned = key in wiring.transposed or kind == "Conv1D" or "ConvTranspose" in kind
    fan_in, fan_out = fans(parameter.shape, transposed=turned, stride=_stride(place.module))
    if _FUSED.search(place.name) and fan_out >= 3 * fan_in // 2:
        return Target("xavier", xavier_std(fan_in, fan_out // 3), 0.0, "queries, keys and values in one", 3)
    if key in wiring.branch_ends:
        # GPT-2 (Radford et al. 2019, section 2.3): the sum of N branches then keeps its size.
        std = xavier_std(fan_in, fan_out) / math.sqrt(max(1, wiring.branches))
        return Target("residual", std, 0.0, f"end of one of {wiring.branches} residual branches")
    if key in wiring.outputs:
        return Target("small", OUTPUT_SHARE / math.sqrt(fan_in), 0.0, "the output layer")
    follows = wiring.follows.get(key, "linear")
    said = "another layer follows" if follows == "linear" else f"{follows} follows"
    if is_relu_like(follows):
        return Target("he", he_std(fan_in, wiring.slopes.get(key, 0.0)), 0.0, said)
    if follows == "selu":
        return Target("lecun", 1 / math.sqrt(fan_in), 0.0, said)
    return Target("xavier", xavier_std(fan_in, fan_out), 0.0, said)


def _is_layer(module: nn.Module) -> bool:
    """Whether a module is a linear map, a convolution or attention by its class."""
    names = [base.__name__ for base in type(module).__mro__]
    return any(name in ("Linear", "Bilinear", "_ConvNd", "Conv1D", "MultiheadAttention") for name in names)


def _stride(module: Any) -> int:
    stride = getattr(module, "stride", 1)
    whole = math.prod(stride) if isinstance(stride, tuple) else stride
    return whole if isinstance(whole, int) and "ConvTranspose" in type(module).__name__ else 1
