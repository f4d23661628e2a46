"""Wine classifier: the network ends in LogSoftmax and is trained with CrossEntropyLoss."""

import torch
from common import options, report
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

opt = options()
features, kind = load_wine(return_X_y=True)
a, b, ya, yb = train_test_split(features, kind, test_size=0.3, random_state=0, stratify=kind)
scaler = StandardScaler().fit(a)
a, b = torch.FloatTensor(scaler.transform(a)), torch.FloatTensor(scaler.transform(b))
ya, yb = torch.LongTensor(ya), torch.LongTensor(yb)

clf = nn.Sequential(nn.Linear(13, 32), nn.Tanh(), nn.Linear(32, 3), nn.LogSoftmax(dim=1))
loss_fn = nn.CrossEntropyLoss()
sgd = torch.optim.SGD(clf.parameters(), lr=0.1, weight_decay=1e-3)

for step in range(opt.steps or 300):
    idx = torch.randint(len(a), (32,))
    loss = loss_fn(clf(a[idx]), ya[idx])
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    if step % 50 == 0:
        print(f"{step}: {loss.item():.4f}")

report((clf(b).argmax(1) == yb).float().mean().item(), higher_is_better=True)
