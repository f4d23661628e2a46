"""Regression with heavy-tailed noise and the Huber loss."""

import numpy as np
import torch
from common import options, report
from sklearn.datasets import make_friedman1
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

args = options()
rng = np.random.default_rng(1)
X, clean = make_friedman1(2500, n_features=10, noise=0.0, random_state=1)
noise = rng.standard_t(df=1.6, size=len(clean))
center, scale = np.median(clean), clean.std()
X = torch.tensor((X - 0.5) / 0.289, dtype=torch.float32)
clean = torch.tensor((clean - center) / scale, dtype=torch.float32)
noisy = clean + torch.tensor(noise / scale, dtype=torch.float32)

loader = DataLoader(TensorDataset(X[:2000], noisy[:2000]), batch_size=64, shuffle=True)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
criterion = nn.HuberLoss(delta=0.5)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-3)

step, limit = 0, args.steps or 380
epoch = 0
while step < limit:
    total = 0.0
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = criterion(model(xb).squeeze(1), yb)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(xb)
        step += 1
        if step == limit:
            break
    epoch += 1
    print(f"epoch {epoch}: {total / 2000:.4f}")

with torch.no_grad():
    mae = (model(X[2000:]).squeeze(1) - clean[2000:]).abs().mean().item()
print("mean absolute error against the noiseless target", mae)
report(mae, higher_is_better=False)
