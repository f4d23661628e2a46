"""A learnable scale at the end of a residual branch."""

from __future__ import annotations

import torch
from torch import nn

from gradmedic.errors import InputError


class ResidualScale(nn.Module):
    """Multiplies its input by a learned scale; made by `residual_scale`."""

    def __init__(self, init: float = 0.0, channels: int | None = None, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim
        self.scale = nn.Parameter(torch.full(() if channels is None else (channels,), float(init)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return `x * scale`, of the shape of `x`."""
        if self.scale.dim() == 0 or self.dim in (-1, x.dim() - 1):
            return x * self.scale
        shape = [1] * x.dim()
        shape[self.dim] = -1
        return x * self.scale.view(shape)

    def extra_repr(self) -> str:
        """Return the settings for the module's repr."""
        return f"channels={self.scale.numel() if self.scale.dim() else None}, dim={self.dim}"


def residual_scale(init: float = 0.0, channels: int | None = None, dim: int = -1) -> ResidualScale:
    """Return a module that multiplies the end of a residual branch by a learned scale.

    A block `x + scale(f(x))` that begins at a scale of 0 is the identity, so that signals and gradients pass any depth
    unchanged at first: ReZero (Bachlechner et al. 2020, arXiv:2003.04887), a single number. With one scale for each
    channel and a small start, 0.1 to 1e-6 the deeper, it is LayerScale (Touvron et al. 2021, arXiv:2103.17239).
    Leave weight decay off it.

    Args:
        init: where the scale begins.
        channels: None for one number, else how many channels have one each.
        dim: axis of the channels: -1 for (batch, ..., channels), 1 for images (batch, channels, height, width).

    Raises:
        InputError: `channels` is not positive.

    Example:
        >>> import torch
        >>> branch = torch.nn.Sequential(torch.nn.Linear(8, 8), residual_scale(0.1, channels=8))
        >>> branch(torch.ones(2, 8)).shape
        torch.Size([2, 8])
    """
    if channels is not None and channels < 1:
        raise InputError(f"channels: expected None or a positive number, got {channels!r}; leave it out for one scale")
    return ResidualScale(init, channels, dim)
