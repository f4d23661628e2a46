"""A small classifier on made-up data, for a few minutes: something for Prometheus and Grafana to show.

`python train.py --steps 200 --pause 0` is over in a second.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two steps")
    asked = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = nn.Linear(32, 10).to(device)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for step in range(asked.steps):
        inputs = torch.randn(128, 32, device=device)
        loss = F.cross_entropy(model(inputs), teacher(inputs).argmax(dim=1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        time.sleep(asked.pause)


if __name__ == "__main__":
    main()
