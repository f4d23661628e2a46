"""Mean teacher on the digits with 200 labels: the teacher is a moving average of the student."""

import copy

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn


def perturb(x: torch.Tensor) -> torch.Tensor:
    return x + 0.25 * torch.randn_like(x)


@torch.no_grad()
def update_teacher(teacher: nn.Module, student: nn.Module, decay: float) -> None:
    for t, s in zip(teacher.parameters(), student.parameters(), strict=True):
        t.mul_(decay).add_(s, alpha=1 - decay)


def main() -> None:
    args = options()
    total = args.steps or 350
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32)
    x = (x - x.mean()) / x.std()
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(6))
    x, y = x[order], y[order]
    labelled, unlabelled, test = x[:200], x[200:1400], x[1400:]

    student = nn.Sequential(
        nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.2), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    teacher = copy.deepcopy(student)
    for p in teacher.parameters():
        p.requires_grad_(False)
    teacher.eval()
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-3)

    for step in range(total):
        student.train()
        i = torch.randint(200, (32,))
        j = torch.randint(len(unlabelled), (96,))
        supervised = F.cross_entropy(student(perturb(labelled[i])), y[i])
        with torch.no_grad():
            goal = teacher(perturb(unlabelled[j])).softmax(1)
        consistency = F.mse_loss(student(perturb(unlabelled[j])).softmax(1), goal)
        loss = supervised + 5.0 * min(1.0, step / 100) * consistency
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update_teacher(teacher, student, min(1 - 1 / (step + 1), 0.98))
        if step % 70 == 0:
            print(f"{step}: supervised {supervised.item():.3f} consistency {consistency.item():.4f}")

    with torch.no_grad():
        report((teacher(test).argmax(1) == y[1400:]).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
