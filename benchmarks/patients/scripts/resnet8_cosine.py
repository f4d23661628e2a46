"""ResNet-8 on the digits: SGD with momentum, learning rate 0.1, cosine schedule."""

import numpy as np
import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, in_planes: int, planes: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNet8(nn.Module):
    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layer1 = BasicBlock(8, 8)
        self.layer2 = BasicBlock(8, 16, stride=2)
        self.layer3 = BasicBlock(16, 32, stride=2)
        self.fc = nn.Linear(32, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean(dim=(2, 3)))


def main() -> None:
    args = options()
    steps = args.steps or 300
    data = load_digits()
    images = torch.from_numpy(data.images).float().unsqueeze(1)
    labels = torch.from_numpy(data.target)
    order = torch.from_numpy(np.random.RandomState(0).permutation(len(labels)))
    images, labels = images[order], labels[order]
    mean, std = images[:1400].mean(), images[:1400].std()
    images = (images - mean) / std
    x_train, y_train, x_val, y_val = images[:1400], labels[:1400], images[1400:], labels[1400:]

    model = ResNet8()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    perm = torch.randperm(1400)
    start = 0
    for step in range(steps):
        if start + 128 > 1400:
            perm, start = torch.randperm(1400), 0
        index = perm[start : start + 128]
        start += 128
        model.train()
        loss = F.cross_entropy(model(x_train[index]), y_train[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 50 == 0:
            print(step, loss.item(), scheduler.get_last_lr()[0])

    model.eval()
    with torch.no_grad():
        accuracy = (model(x_val).argmax(1) == y_val).float().mean().item()
    print("val accuracy", accuracy)
    report(accuracy, higher_is_better=True)


if __name__ == "__main__":
    main()
