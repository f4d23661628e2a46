"""Digits with a small MLP and momentum SGD; weights in a type of choice."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler

args = options(("F34",))
dtype = torch.bfloat16 if args.fault == "F34" else torch.float32

X, y = load_digits(return_X_y=True)
X = torch.tensor(StandardScaler().fit_transform(X), dtype=torch.float32)
y = torch.tensor(y)
order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))
train, test = order[:1400], order[1400:]

model = torch.nn.Sequential(
    torch.nn.Linear(64, 128),
    torch.nn.ReLU(),
    torch.nn.Linear(128, 64),
    torch.nn.ReLU(),
    torch.nn.Linear(64, 10),
).to(dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=3e-3, momentum=0.9)

for _ in range(args.steps or 400):
    rows = train[torch.randint(len(train), (64,))]
    loss = F.cross_entropy(model(X[rows].to(dtype)).float(), y[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with torch.no_grad():
    predicted = model(X[test].to(dtype)).argmax(dim=1)
report((predicted == y[test]).float().mean(), higher_is_better=True)
