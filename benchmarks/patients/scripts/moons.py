"""Two moons, a small network with the whole set as one batch."""

import torch
from common import options, report
from sklearn.datasets import make_moons
from torch import nn

opt = options(("F16",))

X, y = make_moons(n_samples=1000, noise=0.15, random_state=opt.seed)
X = torch.tensor(X, dtype=torch.float32)
y = torch.tensor(y, dtype=torch.float32)
X_train, y_train = X[:700], y[:700]
X_val, y_val = X[700:], y[700:]

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
if opt.fault == "F16":
    model.append(nn.Sigmoid())

bce = nn.BCEWithLogitsLoss()
opt_adam = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(opt.steps or 300):
    model.train()
    opt_adam.zero_grad()
    out = model(X_train).squeeze(1)
    loss = bce(out, y_train)
    loss.backward()
    opt_adam.step()

    if epoch % 50 == 0:
        model.eval()
        with torch.no_grad():
            val_loss = bce(model(X_val).squeeze(1), y_val)
        print(f"epoch {epoch}: {loss.item():.4f} {val_loss.item():.4f}")

model.eval()
with torch.no_grad():
    val_loss = bce(model(X_val).squeeze(1), y_val)
report(val_loss, higher_is_better=False)
