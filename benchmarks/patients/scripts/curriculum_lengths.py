"""Curriculum for counting: the sequences grow from 8 to 24 symbols half way through training."""

import torch
from common import options, report
from torch import nn

args = options()
steps = args.steps or 360


class Counter(nn.Module):
    """Predicts how many of the symbols seen so far equal the first one."""

    def __init__(self, symbols: int = 4, hidden: int = 40):
        super().__init__()
        self.embed = nn.Embedding(symbols, 12)
        self.gru = nn.GRU(12, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, tokens):
        return self.head(self.gru(self.embed(tokens))[0]).squeeze(-1)


def batch_of(length, n=32):
    tokens = torch.randint(4, (n, length))
    count = (tokens == 0).float().cumsum(1)
    return tokens, count / 8


model = Counter()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
loss_fn = nn.SmoothL1Loss()
for step in range(steps):
    length = 8 if step < steps // 2 else 24
    tokens, count = batch_of(length)
    loss = loss_fn(model(tokens), count)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 40 == 0 or step == steps // 2:
        print(f"step {step} length {length} loss {loss.item():.5f}")

model.eval()
with torch.no_grad():
    tokens, count = batch_of(24, 500)
    error = 8 * (model(tokens) - count).abs().mean().item()
print("mean count error", error)
report(error, higher_is_better=False)
