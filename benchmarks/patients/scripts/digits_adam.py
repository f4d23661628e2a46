"""MLP on the digits, Adam."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

args = options()

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0, stratify=y)
scaler = StandardScaler().fit(X_train)
train_set = TensorDataset(torch.tensor(scaler.transform(X_train)).float(), torch.tensor(y_train))
test_set = TensorDataset(torch.tensor(scaler.transform(X_test)).float(), torch.tensor(y_test))
train_loader = DataLoader(train_set, batch_size=64, shuffle=True, drop_last=True)
test_loader = DataLoader(test_set, batch_size=256)

model = nn.Sequential(
    nn.Linear(64, 128),
    nn.ReLU(),
    nn.Linear(128, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)


def evaluate() -> float:
    model.eval()
    correct = 0
    with torch.no_grad():
        for xb, yb in test_loader:
            correct += int((model(xb).argmax(1) == yb).sum())
    return correct / len(test_set)


max_steps = args.steps or 330
step, epoch = 0, 0
while step < max_steps:
    model.train()
    running = 0.0
    for xb, yb in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        running += loss.item()
        step += 1
        if step == max_steps:
            break
    epoch += 1
    print(f"epoch {epoch}: loss {running / len(train_loader):.4f}, test accuracy {evaluate():.4f}")

report(evaluate(), higher_is_better=True)
