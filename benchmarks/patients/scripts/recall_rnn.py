"""Vanilla RNN that must remember the first symbol of a sequence over a hundred noisy steps."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import options, report

args = options(("F04", "F05"))
LENGTH, CLASSES, NOISE, HIDDEN = 100, 4, 4, 32


class Recall(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.rnn = nn.RNN(CLASSES + NOISE, HIDDEN, batch_first=True)
        self.readout = nn.Linear(HIDDEN, CLASSES)
        nn.init.orthogonal_(self.rnn.weight_hh_l0, gain=gain)
        nn.init.normal_(self.rnn.weight_ih_l0, std=0.1)
        nn.init.zeros_(self.rnn.bias_ih_l0)
        nn.init.zeros_(self.rnn.bias_hh_l0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(x)
        return self.readout(states[:, -1])


def make_batch(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    symbol = torch.randint(0, CLASSES, (size,))
    x = torch.zeros(size, LENGTH, CLASSES + NOISE)
    x[:, 1:, CLASSES:] = 0.3 * torch.randn(size, LENGTH - 1, NOISE)
    x[torch.arange(size), 0, symbol] = 1.0
    return x, symbol


gain = {"F04": 0.5, "F05": 2.0}.get(args.fault, 1.0)
model = Recall(gain)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
max_norm = None if args.fault == "F05" else 1.0

for step in range(args.steps or 250):
    x, y = make_batch(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    x, y = make_batch(1000)
    accuracy = (model(x).argmax(1) == y).float().mean().item()
print(f"accuracy {accuracy:.3f}")
report(accuracy, True)
