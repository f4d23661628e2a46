"""A 20-layer perceptron on the digits."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

opt = options(("F01",))
steps = opt.steps or 400
batch_size = 64

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X / 8.0 - 1.0, y, test_size=0.25, random_state=1)
X_train, X_test = (torch.tensor(a, dtype=torch.float32) for a in (X_train, X_test))
y_train, y_test = torch.tensor(y_train), torch.tensor(y_test)

activation, gain = (nn.Sigmoid, 1.0) if opt.fault == "F01" else (nn.ReLU, nn.init.calculate_gain("relu"))
width, depth = 64, 20
layers: list[nn.Module] = []
for _ in range(depth - 1):
    linear = nn.Linear(64, width)
    nn.init.xavier_normal_(linear.weight, gain=gain)
    nn.init.zeros_(linear.bias)
    layers += [linear, activation()]
layers.append(nn.Linear(width, 10))
model = nn.Sequential(*layers)

criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

for step in range(steps):
    idx = torch.randint(len(X_train), (batch_size,))
    loss = criterion(model(X_train[idx]), y_train[idx])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:4d} loss {loss.item():.4f}")

model.eval()
with torch.no_grad():
    accuracy = (model(X_test).argmax(1) == y_test).float().mean()
report(accuracy, higher_is_better=True)
