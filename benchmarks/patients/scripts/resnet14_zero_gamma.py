"""ResNet-14 on the digits; the last batch norm of every residual branch starts at zero."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def conv3x3(cin: int, cout: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(cin, cout, kernel_size=3, stride=stride, padding=1, bias=False)


class Block(nn.Module):
    def __init__(self, cin: int, cout: int, stride: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            conv3x3(cin, cout, stride), nn.BatchNorm2d(cout), nn.ReLU(inplace=True), conv3x3(cout, cout)
        )
        self.norm = nn.BatchNorm2d(cout)
        self.down = None
        if stride > 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x if self.down is None else self.down(x)
        return self.relu(self.norm(self.branch(x)) + identity)


class ResNet(nn.Module):
    def __init__(self, width: int = 8, blocks_per_stage: int = 2, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv3x3(1, width), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        blocks, channels = [], width
        for stage in range(3):
            for i in range(blocks_per_stage):
                out = width * 2**stage
                blocks.append(Block(channels, out, stride=2 if stage > 0 and i == 0 else 1))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, Block):
                nn.init.zeros_(module.norm.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(x)))


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    hits, total = 0, 0
    for x, y in loader:
        hits += (model(x).argmax(1) == y).sum().item()
        total += len(y)
    return hits / total


def main() -> None:
    args = options()
    x, y = load_digits(return_X_y=True)
    x = (torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) - 4.9) / 6.0
    y = torch.tensor(y)
    train, val = train_test_split(range(len(y)), test_size=0.2, random_state=1)
    train_loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=64, shuffle=True, drop_last=True)
    val_loader = DataLoader(TensorDataset(x[val], y[val]), batch_size=360)

    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=[150, 200], gamma=0.1)
    steps, step = args.steps or 240, 0
    while step < steps:
        model.train()
        for xb, yb in train_loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step >= steps:
                break
        print(f"step {step} loss {loss.item():.3f} acc {accuracy(model, val_loader):.3f}")
    report(accuracy(model, val_loader), True)


if __name__ == "__main__":
    main()
