"""GAN on eight Gaussians on a ring."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import options, report

args = options(("F47",))
NOISE, BATCH = 4, 128


def real_points(n: int) -> torch.Tensor:
    angle = torch.randint(0, 8, (n,)) * (2 * math.pi / 8)
    return 2 * torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(n, 2)


def mlp(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(n_in, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, n_out)
    )


def energy_distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()


netG, netD = mlp(NOISE, 2), mlp(2, 1)
rate = 2e-3
saturating = args.fault == "F47"
optG = torch.optim.Adam(netG.parameters(), lr=rate, betas=(0.5, 0.99))
optD = torch.optim.Adam(netD.parameters(), lr=10 * rate if saturating else rate, betas=(0.5, 0.99))
ones, zeros = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)

for it in range(args.steps or 350):
    fake = netG(torch.randn(BATCH, NOISE))
    lossD = F.binary_cross_entropy_with_logits(netD(real_points(BATCH)), ones)
    lossD = lossD + F.binary_cross_entropy_with_logits(netD(fake.detach()), zeros)
    optD.zero_grad()
    lossD.backward()
    optD.step()

    optG.zero_grad()
    if saturating:
        lossG = torch.log(1 - torch.sigmoid(netD(fake)) + 1e-8).mean()
    else:
        lossG = F.binary_cross_entropy_with_logits(netD(fake), ones)
    lossG.backward()
    optG.step()
    if it % 50 == 0:
        print(f"[{it}] D {lossD.item():.3f} G {lossG.item():.3f}")

with torch.no_grad():
    distance = energy_distance(netG(torch.randn(1000, NOISE)), real_points(1000))
report(distance.item(), higher_is_better=False)
