"""Regression on Friedman's function; gradients clipped element by element."""

import torch
from common import options, report
from sklearn.datasets import make_friedman1
from torch import nn

args = options()
X, y = make_friedman1(2000, noise=0.5, random_state=0)
X = torch.tensor((X - 0.5) * 3.46, dtype=torch.float32)
y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)[:, None]

model = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(args.steps or 400):
    i = torch.randint(1600, (64,))
    loss = nn.functional.mse_loss(model(X[i]), y[i])
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    optimizer.step()
    if step % 50 == 0:
        print(step, loss.item())

with torch.no_grad():
    error = nn.functional.mse_loss(model(X[1600:]), y[1600:]).item()
report(error, higher_is_better=False)
