"""Full-batch gradient descent with a constant step on a tanh MLP and squared error."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import nn

args = options()
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32)
x = (x - x.mean(0)) / (x.std(0) + 1e-2) / 2
labels = torch.tensor(digits.target)
y = nn.functional.one_hot(labels, 10).float()
x_train, y_train = x[:600], y[:600]

net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
gd = torch.optim.SGD(net.parameters(), lr=0.7)
for t in range(args.steps or 400):
    gd.zero_grad()
    loss = (net(x_train) - y_train).pow(2).sum(1).mean() / 2
    loss.backward()
    gd.step()
    if t % 20 == 0 or t > 390:
        print(t, loss.item())
with torch.no_grad():
    acc = (net(x[1200:]).argmax(1) == labels[1200:]).float().mean()
report(acc.item(), higher_is_better=True)
