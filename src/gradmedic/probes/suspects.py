"""Which operation can have made a value that is not finite, by its name and by what its node has saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gradmedic.probes.origin_saved import saved_tensors

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


def may_make_it(node: Any) -> bool:
    """Whether a node's operation can turn finite values into others by itself."""
    return bool(node.name().startswith(_SOURCES))


def surely_makes_it(node: Any) -> bool:
    """Whether the node's operation, made again on its saved input, turns finite values into others."""
    again = _REPEATED.get(node.name().partition("Backward")[0])
    given = next((each for each in saved_tensors(node) if each.name == "_saved_self"), None) if again else None
    return again is not None and given is not None and given.finite and not bool(again(given.tensor).isfinite().all())


def product_is_finite(node: Any) -> bool:
    """Whether a matrix product, made again from what it has saved, is finite: then it is not to blame."""
    factors = {each.name: each.tensor for each in saved_tensors(node)}
    one, other = factors.get("_saved_mat1"), factors.get("_saved_mat2")
    if one is None:
        one, other = factors.get("_saved_self"), factors.get("_saved_mat2")
    if one is None or other is None or not node.name().startswith(("Addmm", "Mm", "Bmm")):
        return False
    return bool(torch.isfinite(one @ other).all())


def outside_domain(node: Any) -> bool:
    """Whether a logarithm, a root or a quotient was given a value at which it is not finite."""
    saved = {each.name: each.tensor for each in saved_tensors(node) if not each.tensor.is_complex()}
    name = node.name()
    if name.startswith(("Log", "Sqrt", "Rsqrt")) and not name.startswith(("LogSoftmax", "Logsumexp", "LogSigmoid")):
        value = saved.get("_saved_self")
        floor = -1.0 if name.startswith("Log1P") else 0.0
        return value is not None and bool((value <= floor).any())
    if name.startswith("Div"):
        value = saved.get("_saved_other")
        return value is not None and bool((value == 0).any())
    return False


def op_name(node: Any) -> str:
    """Return the name of a node's operation, as torch's function is called: "log_softmax"."""
    name = node.name().removesuffix("Backward").rstrip("0123456789").removesuffix("Backward").replace("Log1P", "Log1p")
    return "".join(("_" + c.lower()) if c.isupper() and i else c.lower() for i, c in enumerate(name))
