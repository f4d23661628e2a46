"""Regression of Friedman's first function with a tanh network."""

import torch
from common import options, report
from sklearn.datasets import make_friedman1
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, TensorDataset

opt = options(("F10",))
steps = opt.steps or 400

X, y = make_friedman1(n_samples=2400, n_features=10, noise=0.5, random_state=7)
X = StandardScaler().fit_transform(X)
y = (y - y.mean()) / y.std()
X = torch.tensor(X, dtype=torch.float32)
y = torch.tensor(y, dtype=torch.float32).unsqueeze(1)
loader = DataLoader(TensorDataset(X[:2000], y[:2000]), batch_size=50, shuffle=True)
X_val, y_val = X[2000:], y[2000:]

model = nn.Sequential(
    nn.Linear(10, 64),
    nn.Tanh(),
    nn.Linear(64, 64),
    nn.Tanh(),
    nn.Linear(64, 64),
    nn.Tanh(),
    nn.Linear(64, 1),
)
for layer in model[:-1]:
    if isinstance(layer, nn.Linear):
        if opt.fault == "F10":
            nn.init.normal_(layer.weight, std=5.0)
        else:
            nn.init.xavier_normal_(layer.weight, gain=nn.init.calculate_gain("tanh"))

optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
scheduler = CosineAnnealingLR(optimizer, T_max=400)
mse = nn.MSELoss()

done = 0
while done < steps:
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = mse(model(xb), yb)
        loss.backward()
        optimizer.step()
        scheduler.step()
        done += 1
        if done == steps:
            break
    print(f"{done:5d} {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.4f}")

with torch.no_grad():
    val_loss = mse(model(X_val), y_val).item()
report(val_loss, higher_is_better=False)
