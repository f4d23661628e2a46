"""Benign or malignant: an MLP on the Wisconsin breast cancer data."""

import torch
from common import options, report
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opt = options(("F13",))

X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=42, stratify=y)
if opt.fault != "F13":
    scaler = StandardScaler().fit(X_train)
    X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)

train_set = TensorDataset(torch.FloatTensor(X_train), torch.FloatTensor(y_train))
train_loader = DataLoader(train_set, batch_size=32, shuffle=True)
X_test, y_test = torch.FloatTensor(X_test), torch.FloatTensor(y_test)


class MLP(nn.Module):
    def __init__(self, n_features: int):
        super().__init__()
        self.layer1 = nn.Linear(n_features, 32)
        self.layer2 = nn.Linear(32, 16)
        self.out = nn.Linear(16, 1)
        self.act = nn.ReLU()

    def forward(self, x):
        x = self.act(self.layer1(x))
        x = self.act(self.layer2(x))
        return self.out(x).squeeze(-1)


model = MLP(X_train.shape[1])
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)

max_steps = opt.steps or 200
step = 0
while step < max_steps:
    model.train()
    total_loss = 0.0
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        total_loss += loss.item()
        step += 1
        if step >= max_steps:
            break
    print("loss:", total_loss / len(train_loader))

model.eval()
with torch.no_grad():
    accuracy = ((model(X_test) > 0).float() == y_test).float().mean()
report(accuracy, higher_is_better=True)
