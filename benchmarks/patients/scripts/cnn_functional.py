"""LeNet-like network with functional calls, on the digits."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits

opt = options(("F15", "F20"))


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, kernel_size=3)
        self.conv2 = nn.Conv2d(8, 24, kernel_size=3)
        self.fc1 = nn.Linear(24 * 4, 48)
        self.fc2 = nn.Linear(48, 10)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, 24 * 4)
        x = self.drop(F.relu(self.fc1(x)))
        x = self.fc2(x)
        if opt.fault == "F15":
            x = F.softmax(x, dim=1)
        return x


digits = load_digits()
images = torch.Tensor(digits.images).reshape(-1, 1, 8, 8) / 8 - 1
labels = torch.LongTensor(digits.target)
test = torch.arange(len(labels)) % 5 == 0
train_images, train_labels = images[~test], labels[~test]

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
net = LeNet().to(device)
optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)

n_steps = opt.steps or 320
net.train()
for step in range(n_steps):
    batch = torch.randperm(len(train_labels))[:40]
    outputs = net(train_images[batch].to(device))
    loss = F.cross_entropy(outputs, train_labels[batch].to(device))
    if opt.fault != "F20":
        optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % 80 == 0:
        print(f"[{step + 1}] loss: {loss.item():.3f}")

net.eval()
with torch.no_grad():
    outputs = net(images[test].to(device))
correct = (outputs.argmax(dim=1).cpu() == labels[test]).sum().item()
report(correct / int(test.sum()), higher_is_better=True)
