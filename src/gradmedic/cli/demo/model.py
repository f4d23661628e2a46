"""A small language model: a decoder-only transformer over characters, written to be read."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Attention, then a feed-forward network; each with a norm before it and a residual around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, T, C] to [B, T, C]."""
        batch, time, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).reshape(batch, time, width))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class CharacterModel(nn.Module):
    """Predicts the next character.

    Args:
        vocabulary: number of characters V.
        context: longest input T.
        width, heads, depth: of the transformer.
        init_std: standard deviation of all initial weights; 0.02 is what GPT-2 uses.
    """

    def __init__(
        self, vocabulary: int, context: int, width: int = 64, heads: int = 4, depth: int = 3, init_std: float = 0.02
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=init_std)

    def forward(self, codes: Tensor) -> Tensor:
        """Map characters [B, T] to logits [B, T, V]."""
        x = self.tokens(codes) + self.positions(torch.arange(codes.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits
