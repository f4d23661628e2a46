"""What is measured and how large it is: on a card, on a small card, and in a rehearsal on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from gpu_timing import Budget, Stopwatch
from overhead_models import Block
from stats import GPT2_SHAPES

#: Memory that the largest case takes with room to spare: weights, gradients, moments, activations, logits.
_NEEDED = 26 * 2**30


@dataclass(frozen=True)
class Context:
    """What every section is given.

    Attributes:
        device: where.
        tiny: a rehearsal: sizes that a CPU, and Triton's interpreter, get through in seconds.
        scale: share of the full sizes, in (0, 1].
        budget: the section's seconds.
        watch: takes the times.
    """

    device: torch.device
    tiny: bool
    scale: float
    budget: Budget
    watch: Stopwatch

    def size(self, full: int, tiny: int) -> int:
        """Return a number that follows the scale, or that of a rehearsal."""
        return tiny if self.tiny else max(tiny, round(full * self.scale))


def fitting_scale(device: torch.device) -> float:
    """Return the share of the full sizes that fits into the memory that is free."""
    if device.type != "cuda":
        return 1.0
    free, _ = torch.cuda.mem_get_info(device)
    return min(1.0, free / _NEEDED)


def cases(context: Context) -> dict[str, tuple[list[tuple[int, ...]], torch.dtype]]:
    """Return the lists of tensors of the kernel's tables, by name: shapes and type."""
    each = context.size(3_333_334, 300)
    count, small = context.size(20_000, 12), 1000 if not context.tiny else 40
    gpt2 = [tuple(max(1, d // 96) for d in shape) for shape in GPT2_SHAPES[:8]] if context.tiny else GPT2_SHAPES
    return {
        f"{_amount(each * (2 if context.tiny else 300))} bf16 in {2 if context.tiny else 300} tensors": (
            [(each,)] * (2 if context.tiny else 300), torch.bfloat16),
        f"{_amount(sum(torch.Size(s).numel() for s in gpt2))} fp32 in {len(gpt2)} tensors (GPT-2 small)": (
            [tuple(shape) for shape in gpt2], torch.float32),
        f"{count:,} fp32 tensors of {small:,}": ([(small,)] * count, torch.float32),
    }  # fmt: skip


def _amount(elements: int) -> str:
    return f"{elements / 1e9:.2f}B" if elements >= 1e9 else f"{elements / 1e6:.3g}M"


class Decoder(nn.Module):
    """Decoder-only transformer, embedding and head tied: 12 tensors a layer and 4 more."""

    def __init__(self, vocabulary: int, length: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


@dataclass
class Training:
    """A model, its optimizer, and its loss."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], torch.Tensor]

    @property
    def tensors(self) -> int:
        return len(list(self.model.parameters()))

    @property
    def elements(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


def gpt2_small(context: Context) -> Training:
    """124M parameters: 12 layers, width 768, batch 8 x 1,024."""
    if context.tiny:
        return _training("GPT-2-small-sized", context, (64, 16, 32, 1, 2), 2)
    return _training("GPT-2-small-sized", context, (50257, 1024, 768, 12, 12), context.size(8, 1))


def one_billion(context: Context) -> Training:
    """About 1B parameters: 18 layers, width 2,048, batch 4 x 1,024."""
    if context.tiny:
        return _training("1B-sized", context, (64, 16, 32, 2, 2), 2)
    return _training("1B-sized", context, (32000, 1024, 2048, context.size(18, 2), 16), context.size(4, 1))


def _training(name: str, context: Context, shape: tuple[int, int, int, int, int], batch: int) -> Training:
    torch.manual_seed(0)
    vocabulary, length, *_ = shape
    with torch.device(context.device):
        model = Decoder(*shape).to(torch.bfloat16)
        tokens = torch.randint(0, vocabulary, (batch, length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)

    def loss() -> torch.Tensor:
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())

    title = f"{name} decoder, bf16, fused AdamW, batch {batch} x {length}"
    return Training(title, model, optimizer, loss)
