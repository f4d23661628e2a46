"""Transfer learning: the backbone stays frozen, only a new linear head is trained; the optimizer gets everything."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn, optim

args = options()
budget = args.steps or 350

data, target = load_digits(return_X_y=True)
data = torch.tensor(data / 8 - 1, dtype=torch.float32)
target = torch.tensor(target)
parity = target % 2

backbone = nn.Sequential(nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU())
classifier = nn.Linear(160, 10)
loss_fn = nn.CrossEntropyLoss()

# source task: which digit
pretrain = nn.Sequential(backbone, classifier)
sgd = optim.SGD(pretrain.parameters(), lr=0.1, momentum=0.9)
for _ in range(budget // 2):
    i = torch.randint(0, 1200, (64,))
    sgd.zero_grad()
    loss_fn(pretrain(data[i]), target[i]).backward()
    sgd.step()

# target task: odd or even
for param in backbone.parameters():
    param.requires_grad = False
model = nn.Sequential(backbone, nn.Linear(160, 2))
train_x, val_x, train_y, val_y = train_test_split(data[1200:], parity[1200:], test_size=0.4, random_state=0)
adam = optim.Adam(model.parameters(), lr=5e-3)
for it in range(budget - budget // 2):
    model.train()
    i = torch.randint(0, len(train_x), (32,))
    adam.zero_grad()
    loss = loss_fn(model(train_x[i]), train_y[i])
    loss.backward()
    adam.step()
    if it % 25 == 0:
        print(it, float(loss))

model.eval()
with torch.no_grad():
    score = (model(val_x).argmax(-1) == val_y).float().mean()
report(score.item(), higher_is_better=True)
