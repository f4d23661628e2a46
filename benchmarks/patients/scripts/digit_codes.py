"""Autoencoder that compresses digits to twelve non-negative numbers."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import nn

args = options(("F48",))


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enc1 = nn.Linear(64, 64)
        self.enc2 = nn.Linear(64, 12)
        self.dec1 = nn.Linear(12, 64)
        self.dec2 = nn.Linear(64, 64)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.enc2(self.enc1(x).relu()).relu()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dec2(self.dec1(self.encode(x)).relu())


x = torch.from_numpy(load_digits().data).float().div(16)
x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
train, valid = x[:1500], x[1500:]
mse = nn.MSELoss()
ae = Autoencoder()
optimizer = torch.optim.Adam(ae.parameters(), lr=3e-3, weight_decay=1.0 if args.fault == "F48" else 1e-6)
num_steps = args.steps or 300
for step, rows in enumerate(torch.randint(0, 1500, (num_steps, 100))):
    loss = mse(ae(train[rows]), train[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 100 == 0:
        with torch.no_grad():
            print(f"step {step + 1} train {loss.item():.4f} valid {mse(ae(valid), valid).item():.4f}")
with torch.no_grad():
    report(mse(ae(valid), valid), higher_is_better=False)
