"""A model with every kind of layer."""

from __future__ import annotations

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.encoder = nn.ModuleList([Block() for _ in range(blocks)])
        self.rnn = nn.LSTM(4, 4)
        self.conv = nn.Conv1d(4, 4, 3)
        self.up = nn.ConvTranspose1d(4, 6, 3)
        self.head = nn.Linear(6, 5)
        self.temperature = nn.Parameter(torch.ones(()))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.MultiheadAttention(4, 2)
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)
