"""Trains for a while, writes a checkpoint, starts over from it as after a restart and finishes."""

import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn

digits = load_digits()
order = np.random.RandomState(0).permutation(len(digits.target))
X = torch.tensor(digits.data[order] / 16, dtype=torch.float32)
Y = torch.tensor(digits.target[order])


def create() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.995)


def train(path: Path, until: int) -> nn.Module:
    model, optimizer, scheduler = create()
    start = 0
    if path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        start = state["step"]
        print("resumed at step", start)
    for step in range(start, until):
        i = torch.randint(1400, (64,))
        loss = F.cross_entropy(model(X[i]), Y[i])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 50 == 0:
            print(step, loss.item())
    torch.save(
        {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "step": until,
        },
        path,
    )
    return model


def main() -> None:
    args = options()
    steps = args.steps or 320
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "last.pt"
        train(path, steps // 2)
        model = train(path, steps)
    with torch.no_grad():
        report((model(X[1400:]).argmax(1) == Y[1400:]).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
