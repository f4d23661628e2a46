"""Digits as a table of 64 columns, read into tensors and fed to a plain MLP."""

from itertools import pairwise

import numpy as np
import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import nn

args = options(("F37", "X02", "X04", "X05"))


def load() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    table, target = load_digits(return_X_y=True)
    rows = np.random.RandomState(0).permutation(len(table))
    table, target = table[rows], target[rows]
    if args.fault == "F37":
        table[700, 20] = np.nan
    if args.fault == "X04":
        table = (table / 255).astype(np.int64)
    else:
        table = (table - 4.9) / 6.0
    features = torch.tensor(table, dtype=torch.float32)
    labels = torch.tensor(target, dtype=torch.long)
    return features[:1440], labels[:1440], features[1440:], labels[1440:]


def build() -> nn.Sequential:
    widths = [64, 96, 96, 10]
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths[:-1]):
        layers += [nn.Linear(fan_in, fan_out), nn.Tanh()]
    layers.append(nn.Linear(widths[-2], widths[-1]))
    return nn.Sequential(*layers)


train_x, train_y, test_x, test_y = load()
model = build()
settings = {
    "X02": {"eps": 1e-1},
    "X05": {"lr": 3e-2, "weight_decay": 10.0},
}
optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, "weight_decay": 1e-2, **settings.get(args.fault, {})})

steps = args.steps or 225
batch_size = 64
for step in range(steps):
    start = step * batch_size % (len(train_x) - batch_size + 1)
    batch = slice(start, start + batch_size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(train_x[batch]), train_y[batch])
    loss.backward()
    optimizer.step()
    if step % 45 == 44:
        with torch.no_grad():
            accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
        print(f"step {step + 1}: loss {loss.item():.3f} accuracy {accuracy:.3f}")

with torch.no_grad():
    logits = model(test_x)
    report(torch.where(logits.isfinite().all(1), logits.argmax(1), -1).eq(test_y).float().mean(), True)
