"""Fine-tuning with the batch norms frozen in evaluation mode, as in detection code bases."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 2)
        return F.max_pool2d(F.relu(self.bn2(self.conv2(x))), 2).flatten(1)


def freeze_batch_norm(module: nn.Module) -> None:
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.eval()
            m.weight.requires_grad_(False)
            m.bias.requires_grad_(False)


def fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int, lr: float, frozen: bool) -> None:
    if frozen:
        freeze_batch_norm(model)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=lr, momentum=0.9, weight_decay=1e-4)
    for step in range(steps):
        model.train()
        if frozen:
            freeze_batch_norm(model)
        pick = torch.randint(len(x), (64,))
        loss = F.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, f"{loss.item():.4f}")


def main() -> None:
    args = options()
    steps = args.steps or 300
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    y = torch.tensor(digits.target)
    low, high = y < 6, y >= 6
    model = nn.Sequential(Backbone(), nn.Linear(128, 6))
    fit(model, x[low], y[low], steps // 2, lr=0.05, frozen=False)
    model[1] = nn.Linear(128, 4)
    x, y = x[high], y[high] - 6
    fit(model, x[:560], y[:560], steps - steps // 2, lr=0.02, frozen=True)
    model.eval()
    with torch.no_grad():
        report((model(x[560:]).argmax(1) == y[560:]).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
