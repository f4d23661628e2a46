"""MLP through torch.compile."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import nn

args = options()
digits = load_digits()
X = torch.tensor(digits.data, dtype=torch.float32) / 16 - 0.5
Y = torch.tensor(digits.target)

model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 10))
model = torch.compile(model, backend="aot_eager")
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(args.steps or 300):
    pick = torch.randint(1400, (64,))
    loss = nn.functional.cross_entropy(model(X[pick]), Y[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 60 == 0:
        print(step, loss.item())

with torch.no_grad():
    accuracy = (model(X[1400:]).argmax(1) == Y[1400:]).float().mean().item()
report(accuracy, higher_is_better=True)
