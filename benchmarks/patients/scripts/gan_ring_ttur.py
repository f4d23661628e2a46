"""GAN on a ring of eight Gaussians: non-saturating loss, discriminator with the higher learning rate."""

import math

import torch
import torch.nn.functional as F
from common import options, report
from torch import nn


def sample_ring(n: int) -> torch.Tensor:
    angle = 2 * math.pi * torch.randint(8, (n,)) / 8
    return torch.stack([angle.cos(), angle.sin()], 1) * 2 + 0.1 * torch.randn(n, 2)


def energy_distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


def mlp(inputs: int, outputs: int, width: int = 128) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, outputs),
    )


def main() -> None:
    args = options()
    batch, latent = 256, 8
    netG, netD = mlp(latent, 2), mlp(2, 1)
    optG = torch.optim.Adam(netG.parameters(), lr=1e-3, betas=(0.5, 0.9))
    optD = torch.optim.Adam(netD.parameters(), lr=3e-3, betas=(0.5, 0.9))
    for step in range(args.steps or 400):
        real = sample_ring(batch)
        fake = netG(torch.randn(batch, latent))

        netD.zero_grad()
        lossD = F.softplus(-netD(real)).mean() + F.softplus(netD(fake.detach())).mean()
        lossD.backward()
        optD.step()

        netG.zero_grad()
        lossG = F.softplus(-netD(fake)).mean()
        lossG.backward()
        optG.step()
        if step % 50 == 0:
            print(f"[{step}] D {lossD.item():.3f} G {lossG.item():.3f}")
    with torch.no_grad():
        distance = energy_distance(netG(torch.randn(2000, latent)), sample_ring(2000))
    print("energy distance", distance)
    report(distance, higher_is_better=False)


if __name__ == "__main__":
    main()
