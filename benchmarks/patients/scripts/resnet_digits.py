"""ResNet-8 on the 8x8 digits."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

args = options(("F12", "F21", "X01"))
FAULT = args.fault


def norm(channels: int) -> nn.Module:
    return nn.Identity() if FAULT == "F12" else nn.BatchNorm2d(channels)


class Block(nn.Module):
    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.norm1 = norm(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.norm2 = norm(c_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            self.shortcut = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), norm(c_out))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = F.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNet8(nn.Module):
    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, 1, 1, bias=False)
        self.stem_norm = norm(width)
        self.stage1 = Block(width, width, 1)
        self.stage2 = Block(width, 2 * width, 2)
        self.stage3 = Block(2 * width, 4 * width, 2)
        self.fc = nn.Linear(4 * width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_in", nonlinearity="relu")
                if FAULT == "F12":
                    module.weight.data.mul_(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.stem_norm(self.stem(x)))
        x = self.stage2(self.stage1(x))
        if FAULT == "F21":
            x = x.detach()
        x = self.stage3(x)
        return self.fc(x.mean(dim=(2, 3)))


def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    model.eval()
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def main() -> None:
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    images = (images - images.mean()) / images.std()
    labels = torch.tensor(digits.target)
    x_train, x_test, y_train, y_test = train_test_split(images, labels, test_size=0.2, random_state=0)
    loader = DataLoader(TensorDataset(x_train, y_train), batch_size=64, shuffle=True, drop_last=True)

    model = ResNet8()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)

    steps_left = args.steps or 6 * len(loader)
    epoch = 0
    while steps_left > 0:
        model.train()
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if FAULT == "X01":
                scheduler.step()
            steps_left -= 1
            if steps_left == 0:
                break
        if FAULT != "X01":
            scheduler.step()
        epoch += 1
        print(f"epoch {epoch}: loss {loss.item():.3f}, test accuracy {evaluate(model, x_test, y_test):.3f}")
    report(evaluate(model, x_test, y_test), True)


if __name__ == "__main__":
    main()
