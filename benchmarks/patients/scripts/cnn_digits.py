"""A small CNN on the digits, SGD with momentum."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opt = options(("F06", "F07", "F08"))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(32 * 2 * 2, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


digits = load_digits()
X = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
y = torch.tensor(digits.target)
train_idx, test_idx = train_test_split(range(len(y)), test_size=0.2, stratify=digits.target, random_state=0)
train_loader = DataLoader(TensorDataset(X[train_idx], y[train_idx]), batch_size=64, shuffle=True, drop_last=True)
test_x, test_y = X[test_idx], y[test_idx]

model = Net()
if opt.fault == "F08":
    nn.init.constant_(model.conv2.bias, -10.0)

lr = {"F06": 3.0, "F07": 1e-7}.get(opt.fault, 0.05)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)

max_steps = opt.steps or 330
step = 0
for epoch in range(1000):
    model.train()
    running = 0.0
    for images, labels in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(images), labels)
        loss.backward()
        optimizer.step()
        running += loss.item()
        step += 1
        if step >= max_steps:
            break

    model.eval()
    with torch.no_grad():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    print(f"epoch {epoch}: loss {running / len(train_loader):.4f} accuracy {accuracy:.3f}")
    if step >= max_steps:
        break

report(accuracy, higher_is_better=True)
