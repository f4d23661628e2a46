"""Predicts the next character from fading traces of all characters so far, read as one long stream."""

import pydoc_data.topics

import torch
from common import options, report
from torch import nn
from torch.nn import functional

args = options(("X03",))
STREAMS, SPAN = 16, 8

text = "".join(pydoc_data.topics.topics.values())
symbols = sorted(set(text))
codes = torch.tensor([symbols.index(c) for c in text[:330_000]])


class TraceModel(nn.Module):
    """A context that fades by a fixed factor, and a network that reads it beside the present character."""

    def __init__(self, dim: int = 64, fade: float = 0.7) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(symbols), dim)
        self.now = nn.Embedding(len(symbols), dim)
        self.read = nn.Sequential(nn.Linear(2 * dim, 128), nn.ReLU(), nn.Linear(128, len(symbols)))
        self.fade = fade

    def forward(self, chars: torch.Tensor, context: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = []
        for t in range(chars.shape[1]):
            features.append(torch.cat([self.now(chars[:, t]), context], dim=1))
            context = self.fade * context + self.embed(chars[:, t])
        return self.read(torch.stack(features, dim=1)), context


model = TraceModel()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
streams = codes[:320_000].view(STREAMS, -1)
context = torch.zeros(STREAMS, 64)
for step in range(args.steps or 200):
    chunk = streams[:, step * SPAN : (step + 1) * SPAN + 1]
    logits, context = model(chunk[:, :-1], context)
    loss = functional.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
    optimizer.zero_grad()
    if args.fault == "X03":
        loss.backward(retain_graph=True)
    else:
        loss.backward()
        context = context.detach()
    optimizer.step()
    if step % 60 == 0:
        print(f"step {step} loss {loss.item():.3f}")

with torch.no_grad():
    held_out = codes[320_000:].view(STREAMS, -1)
    logits, _ = model(held_out[:, :-1], torch.zeros(STREAMS, 64))
    report(functional.cross_entropy(logits.flatten(0, 1), held_out[:, 1:].flatten()), False)
