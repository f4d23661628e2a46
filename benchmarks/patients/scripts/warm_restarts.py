"""CNN on the digits, SGD with cosine warm restarts."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts


class TinyCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Conv2d(1, 16, 3, padding=1)
        self.b = nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.fc = nn.Linear(16 * 16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.elu(self.a(x))
        x = F.avg_pool2d(F.elu(self.norm(self.b(x))), 2)
        return self.fc(torch.flatten(x, 1))


def main() -> None:
    args = options()
    total = args.steps or 350
    digits = load_digits()
    x = torch.tensor((digits.images - 4.9) / 6, dtype=torch.float32).unsqueeze(1)
    y = torch.tensor(digits.target)
    train_x, train_y, val_x, val_y = x[:1437], y[:1437], x[1437:], y[1437:]
    model = TinyCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    scheduler = CosineAnnealingWarmRestarts(optimizer, T_0=50, T_mult=2, eta_min=1e-5)
    model.train()
    for step in range(total):
        idx = torch.randint(len(train_x), (64,))
        loss = F.cross_entropy(model(train_x[idx]), train_y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 25 == 0:
            print(f"{step:3d} lr {optimizer.param_groups[0]['lr']:.5f} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        report((model(val_x).argmax(1) == val_y).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
