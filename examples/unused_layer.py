"""A layer that is made, given to the optimizer, and never used in the forward pass."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.forgotten = nn.Linear(64, 64)
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(F.relu(self.first(x)))


torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.data, dtype=torch.float32) / 16
labels = torch.tensor(digits.target)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(3):
    for rows in torch.randperm(len(images)).split(64):
        loss = F.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
