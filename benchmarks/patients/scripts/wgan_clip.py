"""Wasserstein GAN with weight clipping on the two moons."""

import torch
from common import options, report
from sklearn.datasets import make_moons
from torch import nn

args = options()
CLIP, N_CRITIC, BATCH, NZ = 0.05, 4, 128, 4

points, _ = make_moons(4000, noise=0.06, random_state=0)
data = torch.tensor((points - points.mean(0)) / points.std(0), dtype=torch.float32)


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Linear(NZ, 64), nn.ReLU(True), nn.Linear(64, 64), nn.ReLU(True), nn.Linear(64, 2))

    def forward(self, z):
        return self.main(z)


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Linear(2, 128), nn.ReLU(True), nn.Linear(128, 128), nn.ReLU(True), nn.Linear(128, 1)
        )

    def forward(self, x):
        return self.main(x).mean()


G, D = Generator(), Critic()
optimizer_g = torch.optim.RMSprop(G.parameters(), lr=2e-3)
optimizer_d = torch.optim.RMSprop(D.parameters(), lr=2e-3)


def real_batch():
    return data[torch.randint(len(data), (BATCH,))]


@torch.no_grad()
def energy_distance():
    a, b = G(torch.randn(2000, NZ)), data[:2000]
    return (2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()).item()


print("before", energy_distance())
for iteration in range((args.steps or 400) // N_CRITIC):
    for p in D.parameters():
        p.requires_grad_(True)
    for _ in range(N_CRITIC):
        optimizer_d.zero_grad()
        with torch.no_grad():
            fake = G(torch.randn(BATCH, NZ))
        err_d = D(fake) - D(real_batch())
        err_d.backward()
        optimizer_d.step()
        for p in D.parameters():
            p.data.clamp_(-CLIP, CLIP)
    for p in D.parameters():
        p.requires_grad_(False)  # saves computation
    optimizer_g.zero_grad()
    err_g = -D(G(torch.randn(BATCH, NZ)))
    err_g.backward()
    optimizer_g.step()
    if iteration % 20 == 0:
        print(f"{iteration}: critic {err_d.item():.4f} generator {err_g.item():.4f}")

final = energy_distance()
print("after", final)
report(final, higher_is_better=False)
