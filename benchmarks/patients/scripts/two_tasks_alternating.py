"""Shared trunk with two heads; even steps train the digit, odd steps the reconstruction of a noisy input."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.digit = nn.Linear(64, 10)
        self.denoise = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor, task: str) -> torch.Tensor:
        features = self.trunk(x)
        return self.digit(features) if task == "digit" else self.denoise(features)


def main() -> None:
    args = options()
    bunch = load_digits()
    x = torch.from_numpy(bunch.data).float().div(16).sub(0.3).div(0.37)
    y = torch.from_numpy(bunch.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(2))
    train, test = order[:1437], order[1437:]
    net = TwoHeads()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for step in range(args.steps or 400):
        batch = train[torch.randint(len(train), (96,))]
        if step % 2 == 0:
            loss = F.cross_entropy(net(x[batch], "digit"), y[batch])
        else:
            noisy = x[batch] + 0.3 * torch.randn(96, 64)
            loss = F.mse_loss(net(noisy, "denoise"), x[batch])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 80 < 2:
            print("digit" if step % 2 == 0 else "denoise", step, f"{loss.item():.4f}")
    net.eval()
    with torch.no_grad():
        acc = (net(x[test], "digit").argmax(1) == y[test]).float().mean().item()
    report(acc, True)


if __name__ == "__main__":
    main()
