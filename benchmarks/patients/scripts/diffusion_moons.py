"""Denoising diffusion on the two moons: an MLP predicts the noise at a random time."""

import math

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import make_moons
from torch import nn

T = 50


class Denoiser(nn.Module):
    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.inp = nn.Linear(2 + 16, hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.mid2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 2)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        freq = torch.exp(torch.linspace(0, math.log(50), 8))
        angle = t[:, None].float() / T * freq
        h = F.silu(self.inp(torch.cat([x, angle.sin(), angle.cos()], dim=1)))
        h = h + F.silu(self.mid(h))
        h = h + F.silu(self.mid2(h))
        return self.out(h)


def alphas() -> tuple[torch.Tensor, torch.Tensor]:
    beta = torch.linspace(1e-3, 0.15, T)
    return beta, torch.cumprod(1 - beta, dim=0)


@torch.no_grad()
def sample(model: nn.Module, n: int) -> torch.Tensor:
    beta, bar = alphas()
    x = torch.randn(n, 2)
    for t in reversed(range(T)):
        eps = model(x, torch.full((n,), t))
        x = (x - beta[t] / (1 - bar[t]).sqrt() * eps) / (1 - beta[t]).sqrt()
        if t > 0:
            x = x + beta[t].sqrt() * torch.randn_like(x)
    return x


def energy_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


def main() -> None:
    args = options()
    points, _ = make_moons(4000, noise=0.05, random_state=0)
    data = torch.tensor((points - points.mean(0)) / points.std(0), dtype=torch.float32)
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    _, bar = alphas()
    for step in range(args.steps or 400):
        x0 = data[torch.randint(len(data), (256,))]
        t = torch.randint(T, (256,))
        noise = torch.randn_like(x0)
        xt = bar[t].sqrt()[:, None] * x0 + (1 - bar[t]).sqrt()[:, None] * noise
        loss = F.mse_loss(model(xt, t), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    report(energy_distance(sample(model, 1500), data[:1500]), higher_is_better=False)


if __name__ == "__main__":
    main()
