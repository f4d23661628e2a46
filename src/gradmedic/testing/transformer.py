"""A transformer language model that learns to count on."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gradmedic.testing.case import Case, fault_of, seeded, supervised
from gradmedic.testing.tasks import counting

FAULTS: dict[str, tuple[str, str]] = {
    "attention_logits": ("GM310", "queries and keys begin a hundred times too large"),
    "learning_rate_high": ("GM401", "a learning rate a thousand times too high"),
    "no_mask": ("GM513", "attention sees the words that are to be predicted"),
}

WORDS, WIDTH, HEADS, LENGTH = 17, 32, 4, 16


class Attention(nn.Module):
    """Self-attention; causal: to what came before only."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, time, width]."""
        batch, time, width = x.shape
        parts = self.qkv(x).view(batch, time, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return out


class Block(nn.Module):
    """Attention and a perceptron, each behind a norm and beside a shortcut."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [batch, time, width]."""
        x = x + self.attention(self.norm1(x))
        out: torch.Tensor = x + self.mlp(self.norm2(x))
        return out


class LanguageModel(nn.Module):
    """Ids [batch, time] to logits of the next id [batch, words, time]."""

    def __init__(
        self, words: int = WORDS, width: int = WIDTH, heads: int = HEADS, depth: int = 2, *, causal: bool = True
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads, causal) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        for table in (self.words, self.positions):
            nn.init.normal_(table.weight, std=width**-0.5)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return logits, the words along axis 1."""
        places = torch.arange(ids.shape[1], device=ids.device)
        x = self.words(ids) + self.positions(places)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits.transpose(1, 2)


def transformer(fault: str | None = None, *, seed: int = 0) -> Case:
    """Return a language model (two blocks of width 32) that learns to count on by the stride of each row.

    Args:
        fault: see `faults()`; None for a healthy training.
        seed: of weights and data.

    Raises:
        InputError: there is no such fault.

    Example:
        >>> transformer("attention_logits").code
        'GM310'
    """
    known = fault_of("transformer", fault, FAULTS)
    with seeded(seed):
        model = LanguageModel(causal=fault != "no_mask")
    if fault == "attention_logits":
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name.endswith("qkv.weight"):
                    weight[: 2 * WIDTH] *= 100
    optimizer = torch.optim.AdamW(model.parameters(), lr=3.0 if fault == "learning_rate_high" else 3e-3)
    step = supervised(
        model,
        optimizer,
        counting(seed, WORDS, LENGTH),
        functional.cross_entropy,
        before_step=lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    )
    return Case(model, optimizer, step, 80, known)
