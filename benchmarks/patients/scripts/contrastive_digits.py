"""Self-supervised contrastive learning (NT-Xent) on jittered digits, scored on held-out pairs."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()
        )
        self.fc = nn.Linear(16 * 16, 64)
        self.projection = nn.Sequential(nn.ReLU(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.fc(self.body(x).flatten(1))
        return F.normalize(self.projection(h), dim=1)


def jitter(x: torch.Tensor) -> torch.Tensor:
    keep = (torch.rand_like(x) > 0.25).float()
    gain = 0.8 + 0.4 * torch.rand(len(x), 1, 1, 1)
    return x * keep * gain + 0.15 * torch.randn_like(x)


def nt_xent(a: torch.Tensor, b: torch.Tensor, temperature: float = 0.2) -> torch.Tensor:
    z = torch.cat([a, b])
    similarity = z @ z.t() / temperature
    similarity.fill_diagonal_(-1e9)
    n = len(a)
    positives = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(similarity, positives)


def main() -> None:
    args = options()
    x = torch.tensor(load_digits().data, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    model = Encoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for step in range(args.steps or 250):
        batch = x[torch.randint(1400, (64,))]
        loss = nt_xent(model(jitter(batch)), model(jitter(batch)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item())
    model.eval()
    with torch.no_grad():
        held_out = x[1400:].split(64)[:-1]
        losses = [nt_xent(model(jitter(part)), model(jitter(part))) for part in held_out]
    report(torch.stack(losses).mean().item(), higher_is_better=False)


if __name__ == "__main__":
    main()
