"""Siamese network on digits: pairs of the same digit are pulled together, others pushed apart."""

import numpy as np
import torch
from common import options, report
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier
from torch import nn

options_ = options(("F39",))
rng = np.random.RandomState(7)

bunch = load_digits()
x = torch.tensor(bunch.data / 8.0 - 1.0, dtype=torch.float32)
y = bunch.target
train_rows, test_rows = np.arange(0, 1200), np.arange(1200, len(y))
by_class = [train_rows[y[train_rows] == digit] for digit in range(10)]


def make_pairs(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws pairs, half of them of the same digit."""
    left = rng.choice(train_rows, count)
    same = rng.rand(count) < 0.5
    partner_class = np.where(same, y[left], (y[left] + rng.randint(1, 10, count)) % 10)
    right = np.array([rng.choice(by_class[digit]) for digit in partner_class])
    return left, right, same


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    squared = ((a - b) ** 2).sum(dim=1)
    if options_.fault == "F39":
        return torch.sqrt(squared)
    return torch.sqrt(squared + 1e-6)


class Embedder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.1), nn.Linear(128, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


net = Embedder()
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
left, right, same = make_pairs(200 * 64)
target = torch.tensor(same, dtype=torch.float32)
margin = 2.0

for step in range(options_.steps or 200):
    s = slice(step * 64 % len(left), step * 64 % len(left) + 64)
    d = distance(net(x[left[s]]), net(x[right[s]]))
    loss = (target[s] * d**2 + (1 - target[s]) * (margin - d).clamp(min=0) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 0:
        print(f"step {step}: contrastive loss {loss.item():.4f}")

with torch.no_grad():
    embedded = net(x).numpy()
if np.isfinite(embedded).all():
    knn = KNeighborsClassifier(5).fit(embedded[train_rows], y[train_rows])
    report(knn.score(embedded[test_rows], y[test_rows]), True)
else:
    report(float("nan"), True)
