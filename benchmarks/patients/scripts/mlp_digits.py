"""A two-hidden-layer perceptron on the digits with a cosine schedule written by hand."""

import math

import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import nn

opt = options(("F09",))
TOTAL = opt.steps or 400
BASE_LR = 0.05


def learning_rate(step: int) -> float:
    lr = BASE_LR * 0.5 * (1 + math.cos(math.pi * step / 400))
    if opt.fault == "F09" and 100 <= step < 103:
        lr *= 300
    return lr


digits = load_digits()
data = torch.from_numpy(digits.data).float()
target = torch.from_numpy(digits.target)
perm = torch.randperm(len(data))
data, target = data[perm], target[perm]
mean, std = data[:1400].mean(0), data[:1400].std(0) + 1e-2
data = (data - mean) / std
x_train, y_train = data[:1400], target[:1400]
x_val, y_val = data[1400:], target[1400:]

net = nn.Sequential(
    nn.Linear(64, 128),
    nn.ReLU(),
    nn.Linear(128, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
loss_fn = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=BASE_LR, momentum=0.9)

order = torch.randperm(len(x_train))
cursor = 0
for step in range(TOTAL):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step)
    if cursor + 50 > len(order):
        order = torch.randperm(len(x_train))
        cursor = 0
    batch = order[cursor : cursor + 50]
    cursor += 50

    loss = loss_fn(net(x_train[batch]), y_train[batch])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

with torch.no_grad():
    accuracy = (net(x_val).argmax(-1) == y_val).double().mean()
report(accuracy.item(), True)
