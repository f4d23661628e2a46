"""Small regression network fitted with L-BFGS."""

import torch
from common import options, report
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler
from torch import nn

args = options()
X, y = load_diabetes(return_X_y=True)
X = StandardScaler().fit_transform(X)
y = (y - y.mean()) / y.std()
X, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32).unsqueeze(1)
X_train, y_train, X_test, y_test = X[:340], y[:340], X[340:], y[340:]

model = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Linear(16, 1))
mse = nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=1.0, max_iter=4, history_size=10, line_search_fn="strong_wolfe")


def closure() -> torch.Tensor:
    optimizer.zero_grad()
    penalty = sum((w**2).sum() for w in model.parameters())
    loss = mse(model(X_train), y_train) + 0.01 * penalty
    loss.backward()
    return loss


for i in range(args.steps or 20):
    loss = optimizer.step(closure)
    if i % 5 == 0:
        with torch.no_grad():
            print(i, loss.item(), "test", mse(model(X_test), y_test).item())

with torch.no_grad():
    r2 = 1 - mse(model(X_test), y_test) / y_test.var(unbiased=False)
print("test R2")
report(r2.item(), higher_is_better=True)
