"""Decoder-only transformer with a convolutional stem, SGD and gradient clipping."""

import pydoc_data.topics

import numpy as np
import torch
import torch.nn.functional as F
from common import options, report
from torch import nn
from torch.nn.utils import clip_grad_norm_

SEQ, DIM = 32, 48


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_a = nn.LayerNorm(DIM)
        self.attention = nn.MultiheadAttention(DIM, 4, batch_first=True)
        self.norm_b = nn.LayerNorm(DIM)
        self.ff = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.ReLU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = self.norm_a(x)
        x = x + self.attention(h, h, h, attn_mask=mask, need_weights=False)[0]
        return x + self.ff(self.norm_b(x))


class Decoder(nn.Module):
    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, DIM)
        self.stem = nn.Conv1d(DIM, DIM, kernel_size=3)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.to_vocab = nn.Linear(DIM, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens).transpose(1, 2)
        x = self.stem(F.pad(x, (2, 0))).transpose(1, 2)
        mask = torch.triu(torch.ones(SEQ, SEQ, dtype=torch.bool), diagonal=1)
        for layer in self.layers:
            x = layer(x, mask)
        return self.to_vocab(x)


def main() -> None:
    args = options(("F28",))
    raw = np.frombuffer(" ".join(pydoc_data.topics.topics.values()).encode("ascii", "ignore"), dtype=np.uint8)
    symbols, codes = np.unique(raw, return_inverse=True)
    tokens = torch.from_numpy(codes.astype(np.int64))
    cut = len(tokens) * 9 // 10

    def windows(low: int, high: int, count: int) -> torch.Tensor:
        return torch.stack([tokens[i : i + SEQ + 1] for i in np.random.randint(low, high - SEQ - 1, count)])

    model = Decoder(len(symbols))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    num_steps = args.steps or 260
    for step in range(num_steps):
        batch = windows(0, cut, 24)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if args.fault == "F28":
            optimizer.step()
            clip_grad_norm_(model.parameters(), max_norm=0.25)
        else:
            clip_grad_norm_(model.parameters(), max_norm=0.25)
            optimizer.step()
        if step % 20 == 0:
            print(step, round(loss.item(), 3))

    model.eval()
    with torch.no_grad():
        batch = windows(cut, len(tokens), 400)
        loss = F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
    report(loss, higher_is_better=False)


if __name__ == "__main__":
    main()
