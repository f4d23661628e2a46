"""A 30-layer ReLU network without normalisation on the digits."""

import itertools
import math

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class DeepNet(nn.Module):
    def __init__(self, depth: int, width: int, scale: float) -> None:
        super().__init__()
        sizes = [64] + [width] * (depth - 1)
        self.hidden = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.head = nn.Linear(width, 10)
        for layer in self.hidden:
            nn.init.normal_(layer.weight, std=scale * math.sqrt(2.0 / layer.in_features))
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.head(x)


def load_data(seed: int) -> tuple[DataLoader, DataLoader]:
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32)
    images = images / 8 - 1
    data = TensorDataset(images, torch.tensor(digits.target))
    train, test = random_split(data, [1437, 360], generator=torch.Generator().manual_seed(seed))
    return DataLoader(train, batch_size=48, shuffle=True), DataLoader(test, batch_size=360)


def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    correct = total = 0
    with torch.no_grad():
        for x, y in loader:
            correct += int((model(x).argmax(dim=1) == y).sum())
            total += len(y)
    return correct / total


def main() -> None:
    opt = options(("F02", "F03"))
    scale = {"F02": 0.5, "F03": 2.0}.get(opt.fault or "", 1.0)
    train_loader, test_loader = load_data(opt.seed)
    model = DeepNet(depth=30, width=64, scale=scale)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    step, max_steps = 0, opt.steps or 320
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=320)
    while step < max_steps:
        model.train()
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            step += 1
            if step == max_steps:
                break
        print(f"step {step}: train loss {loss.item():.4f}, test accuracy {evaluate(model, test_loader):.3f}")

    report(evaluate(model, test_loader), higher_is_better=True)


if __name__ == "__main__":
    main()
