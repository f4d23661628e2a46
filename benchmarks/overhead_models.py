"""What the overhead benchmark trains: a decoder-only transformer, a small MLP, and very many small tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

BATCH, LENGTH = 4, 128


@dataclass
class Workload:
    """A model, its optimizer and its loss on fresh data."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[], torch.Tensor]
    monitors: dict[str, Any] = field(default_factory=dict)
    cleanup: ExitStack = field(default_factory=ExitStack)

    @property
    def tensors(self) -> int:
        return len(list(self.model.parameters()))

    @property
    def elements(self) -> int:
        return sum(p.numel() for p in self.model.parameters())


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Decoder-only transformer: 12 tensors a layer and 5 more."""

    def __init__(self, vocabulary: int = 4096, width: int = 256, layers: int = 12, heads: int = 8) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def make_transformer() -> Workload:
    """12 layers, width 256, batch 4 x 128."""
    return _learning_to_count(vocabulary=4096, width=256, batch=BATCH, length=LENGTH)


def make_large_transformer() -> Workload:
    """The size of GPT-2 small, 124M elements in 149 tensors, at a batch that a laptop's cores can do: 1 x 32."""
    return _learning_to_count(vocabulary=25_000, width=768, batch=1, length=32)


def _learning_to_count(*, vocabulary: int, width: int, batch: int, length: int) -> Workload:
    """Counting sequences of a modular rule that can be learned."""
    torch.manual_seed(0)
    model = Transformer(vocabulary, width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def loss() -> torch.Tensor:
        start, stride = torch.randint(0, vocabulary, (batch, 1)), torch.randint(1, 4, (batch, 1))
        tokens = (start + stride * torch.arange(length + 1)) % vocabulary
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    return Workload(f"Transformer, 12 layers, width {width}, batch {batch} x {length}", model, optimizer, loss)


def make_mlp() -> Workload:
    """784-60-40-10 on noisy clusters, batch 64: a step so short that fixed costs show."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(784, 60), nn.ReLU(), nn.Linear(60, 40), nn.ReLU(), nn.Linear(40, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    centres = torch.randn(10, 784)

    def loss() -> torch.Tensor:
        labels = torch.randint(0, 10, (64,))
        return F.cross_entropy(model(centres[labels] + 2 * torch.randn(64, 784)), labels)

    return Workload("MLP 784-60-40-10, batch 64", model, optimizer, loss)


class ManyTensors(nn.Module):
    """2,000 tensors of 1,000 elements."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(1000)) for _ in range(2000))

    def forward(self) -> torch.Tensor:
        return torch.cat(list(self.weights)).square().mean()


def make_many_tensors() -> Workload:
    """A sum of squares over 2,000 tensors: cost per tensor."""
    torch.manual_seed(0)
    model = ManyTensors()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return Workload("2,000 tensors of 1,000 elements", model, optimizer, model)
