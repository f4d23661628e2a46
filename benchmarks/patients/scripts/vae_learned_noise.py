"""VAE on digits whose decoder learns the noise of every pixel."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, random_split

args = options(("F38",))


class VAE(nn.Module):
    def __init__(self, latent: int = 8, hidden: int = 96) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU())
        self.mean = nn.Linear(hidden, 64)
        self.log_std = nn.Linear(hidden, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        mu, log_sigma2 = self.encoder(x).chunk(2, dim=1)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * log_sigma2)
        h = self.decoder(z)
        log_std = self.log_std(h)
        if args.fault != "F38":
            log_std = log_std.clamp(-2.0, 2.0)
        return F.relu(self.mean(h)), log_std, mu, log_sigma2


def elbo(x: torch.Tensor, out: tuple[torch.Tensor, ...]) -> torch.Tensor:
    mean, log_std, mu, log_sigma2 = out
    nll = (log_std + 0.5 * (x - mean) ** 2 * torch.exp(-2 * log_std)).sum(1)
    kl = -0.5 * (1 + log_sigma2 - mu**2 - log_sigma2.exp()).sum(1)
    return (nll + kl).mean()


data = torch.tensor(load_digits().data / 16.0, dtype=torch.float32)
train_set, valid_set = random_split(data, [1497, 300], generator=torch.Generator().manual_seed(0))
loader = DataLoader(train_set, batch_size=100, shuffle=True, drop_last=True)
valid = torch.stack(list(valid_set))

vae = VAE()
optimizer = torch.optim.Adam(vae.parameters(), lr=8e-3)
n_steps = args.steps or 400
done = 0
while done < n_steps:
    for x in loader:
        loss = elbo(x, vae(x))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done += 1
        if done % 35 == 0:
            print(f"step {done} loss {loss.item():.2f}")
        if done >= n_steps:
            break

with torch.no_grad():
    reconstruction = vae(valid)[0]
    report(F.mse_loss(reconstruction, valid), higher_is_better=False)
