"""A rather wide CNN on the digits."""

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from common import options, report
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 48, 3, padding=1)
        self.conv2 = nn.Conv2d(48, 48, 3, padding=1)
        self.fc1 = nn.Linear(48 * 4, 256)
        self.fc2 = nn.Linear(256, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc2(x)


args = options()
images, targets = load_digits(return_X_y=True)
images = torch.tensor(images / 16.0).float().view(-1, 1, 8, 8) * 2 - 1
x_train, x_test, y_train, y_test = train_test_split(images, torch.tensor(targets), test_size=0.25, random_state=3)

net = Net()
optimizer = optim.Adam(net.parameters(), lr=5e-3)
steps = args.steps or 360
scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=100, gamma=0.3)

net.train()
for _ in range(steps):
    pick = torch.randint(len(x_train), (64,))
    loss = F.cross_entropy(net(x_train[pick]), y_train[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()

net.eval()
with torch.no_grad():
    acc = (net(x_test).argmax(1) == y_test).float().mean().item()
print(f"accuracy {acc:.4f}")
report(acc, higher_is_better=True)
