"""Knowledge distillation: a small student learns from the softened outputs of a larger teacher."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn

TEMPERATURE, ALPHA = 3.0, 0.7


def loader(x: torch.Tensor, y: torch.Tensor, steps: int):
    for _ in range(steps):
        pick = torch.randint(len(x), (64,))
        yield x[pick], y[pick]


def distillation_loss(student: torch.Tensor, teacher: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    soft = F.kl_div(
        F.log_softmax(student / TEMPERATURE, dim=1), F.softmax(teacher / TEMPERATURE, dim=1), reduction="batchmean"
    )
    return ALPHA * TEMPERATURE**2 * soft + (1 - ALPHA) * F.cross_entropy(student, target)


def main() -> None:
    args = options()
    steps = args.steps or 360
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32) / 16
    x = (x - x[:1400].mean(0)) / (x[:1400].std(0) + 0.1)
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(8))
    x, y = x[order], y[order]

    teacher = nn.Sequential(
        nn.Linear(64, 256),
        nn.BatchNorm1d(256),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for xb, yb in loader(x[:1400], y[:1400], steps // 3):
        loss = F.cross_entropy(teacher(xb), yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    teacher.eval()
    print("teacher loss", loss.item())

    student = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
    optimizer = torch.optim.Adam(student.parameters(), lr=5e-3)
    for step, (xb, yb) in enumerate(loader(x[:1400], y[:1400], steps - steps // 3)):
        with torch.no_grad():
            targets = teacher(xb)
        loss = distillation_loss(student(xb), targets, yb)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 60 == 0:
            print(step, loss.item())
    with torch.no_grad():
        report((student(x[1400:]).argmax(1) == y[1400:]).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
