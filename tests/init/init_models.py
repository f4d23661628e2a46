"""Models whose right initialisation is known, in the styles that people write."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def convnet():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        nn.Linear(16, 12),
        nn.Tanh(),
        nn.Dropout(0.5),
        nn.Linear(12, 5),
    )


class Functional(nn.Module):
    """Activations are functions, one matrix is a plain parameter behind x, and layers are registered in reverse."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(16, 3)
        self.second = nn.Linear(16, 16)
        self.matrix = nn.Parameter(torch.randn(8, 16) * 0.3)
        self.turned = nn.Parameter(torch.randn(16, 16) * 0.3)
        self.unused = nn.Linear(4, 4)

    def forward(self, x):
        x = torch.tanh(x @ self.matrix)
        x = functional.silu(self.second(x)).mul(1.0)
        x = (x @ self.turned.t()).clamp(min=0)
        return {"logits": self.last(x)}


class PreNormBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, words=30, width=16, depth=3):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.pos_embed = nn.Parameter(torch.zeros(1, 12, width))
        self.blocks = nn.ModuleList(PreNormBlock(width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids):
        x = self.words(ids) + self.pos_embed[:, : ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class BasicBlock(nn.Module):
    def __init__(self, inside, outside, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outside), nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.down = None
        if stride != 1 or inside != outside:
            self.down = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        same = x if self.down is None else self.down(x)
        x = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        x += same
        return self.relu(x)


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 16, 2))
        self.fc = nn.Linear(16, 10)

    def forward(self, x):
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))
