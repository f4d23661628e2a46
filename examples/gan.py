"""Two models, two optimizers: a generator of handwritten digits and its discriminator."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
generator = nn.Sequential(nn.Linear(16, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.Sigmoid())
discriminator = nn.Sequential(nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
for _ in range(80):
    real = images[torch.randint(len(images), (64,))]
    fake = generator(torch.randn(64, 16))

    loss_d = F.binary_cross_entropy_with_logits(discriminator(real), ones)
    loss_d = loss_d + F.binary_cross_entropy_with_logits(discriminator(fake.detach()), zeros)
    optimizer_d.zero_grad()
    loss_d.backward()
    optimizer_d.step()

    loss_g = F.binary_cross_entropy_with_logits(discriminator(fake), ones)
    optimizer_g.zero_grad()
    loss_g.backward()
    optimizer_g.step()
print(f"discriminator {loss_d.item():.3f}, generator {loss_g.item():.3f}")
