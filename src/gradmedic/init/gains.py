"""Fans and gains: how large weights have to be for signals to keep their size.

A layer y = W x with independent entries of variance v multiplies the mean square of its input by fan_in * v, and that
of the gradient by fan_out * v. ReLU halves both, hence He's 2 / fan_in (He et al. 2015, arXiv:1502.01852); a function
of slope 1 at zero keeps them, hence Glorot's 2 / (fan_in + fan_out) (Glorot & Bengio 2010), also for tanh, whose gain
of 1 is the one at which deep networks neither forget nor turn chaotic (Schoenholz et al. 2017, arXiv:1611.01232).
GELU and SiLU get He's as well, but are no power of their input: no gain holds signals over many such layers without
norms.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

#: Functions that pass about half of their input on, by the name of torch's function.
_HALF = ("relu", "relu6", "gelu", "silu", "mish", "hardswish", "elu", "celu", "softplus", "threshold", "glu")
_LEAKY = ("leaky_relu", "rrelu", "prelu")
_BOUNDED = ("tanh", "sigmoid", "hardtanh", "hardsigmoid", "softsign", "logsigmoid")
#: SELU normalises by itself at a gain of 1 over fan_in (Klambauer et al. 2017, arXiv:1706.02515).
_SELF_NORMALIZING = ("selu",)

#: Every function that counts as an activation.
ACTIVATIONS = frozenset({*_HALF, *_LEAKY, *_BOUNDED, *_SELF_NORMALIZING})

#: Classes of torch.nn whose name in lower case is not the function's.
_RENAMED = {
    "leakyrelu": "leaky_relu",
    "hardswish": "hardswish",
    "swish": "silu",
    "newgeluactivation": "gelu",
    "gelunew": "gelu",
    "fastgelu": "gelu",
    "quickgelu": "gelu",
    "quickgeluactivation": "gelu",
    "geluactivation": "gelu",
}


def activation_name(name: str) -> str | None:
    """Return the activation that a function ("relu_") or class ("LeakyReLU") is, None for anything else.

    Example:
        >>> activation_name("LeakyReLU"), activation_name("relu_"), activation_name("Linear")
        ('leaky_relu', 'relu', None)
    """
    key = name.lower().rstrip("_")
    key = _RENAMED.get(key, key)
    return key if key in ACTIVATIONS else None


def is_relu_like(activation: str) -> bool:
    """Whether He's initialisation suits the layer in front of an activation."""
    return activation in _HALF or activation in _LEAKY


def he_std(fan_in: int, slope: float = 0.0) -> float:
    """Return He's standard deviation: sqrt(2 / ((1 + slope^2) fan_in)).

    Args:
        fan_in: inputs of one output unit.
        slope: of the activation below zero.

    Example:
        >>> he_std(50)
        0.2
    """
    return math.sqrt(2.0 / ((1.0 + slope * slope) * max(1, fan_in)))


def xavier_std(fan_in: int, fan_out: int) -> float:
    """Return Glorot's standard deviation: sqrt(2 / (fan_in + fan_out)).

    Example:
        >>> xavier_std(30, 20)
        0.2
    """
    return math.sqrt(2.0 / max(1, fan_in + fan_out))


def fans(shape: Sequence[int], *, transposed: bool = False, stride: int = 1) -> tuple[int, int]:
    """Return (fan_in, fan_out) of a weight.

    Args:
        shape: (out, in, *kernel), at least two axes; groups need no care, since torch leaves the others out of `in`.
        transposed: the shape is (in, out, *kernel): transposed convolutions, and matrices that stand behind x.
        stride: product of a transposed convolution's strides; each output sees so many inputs less.

    Example:
        >>> fans((16, 8, 3, 3))
        (72, 144)
    """
    kernel = math.prod(shape[2:])
    first, second = shape[0] * kernel, shape[1] * kernel
    return (max(1, first // stride), second) if transposed else (second, first)
