"""VAE on the digits with a Gaussian decoder of learned variance: the negative ELBO is a log density, so below zero."""

import math

import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


class VAE(nn.Module):
    def __init__(self, latent: int = 8, hidden: int = 96) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, hidden), nn.SiLU(), nn.Linear(hidden, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.SiLU(), nn.Linear(hidden, 64))
        self.log_var = nn.Parameter(torch.full((64,), -3.0))

    def forward(self, x):
        mu, logvar = self.encoder(x).chunk(2, dim=-1)
        logvar = logvar.clamp(-8, 8)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar

    def negative_elbo(self, x):
        recon, mu, logvar = self(x)
        var = self.log_var.clamp(min=-6).exp()
        nll = 0.5 * ((x - recon) ** 2 / var + var.log() + math.log(2 * math.pi)).sum(1)
        kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1)
        return (nll + kl).mean()


def main() -> None:
    args = options()
    images = torch.tensor(load_digits().data / 16.0, dtype=torch.float32)
    train, test = random_split(TensorDataset(images), [1500, 297], generator=torch.Generator().manual_seed(1))
    loader = DataLoader(train, batch_size=100, shuffle=True)
    test_x = images[test.indices]
    model = VAE()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    steps = args.steps or 390
    done = 0
    while done < steps:
        model.train()
        for (x,) in loader:
            optimizer.zero_grad()
            loss = model.negative_elbo(x)
            loss.backward()
            optimizer.step()
            done += 1
            if done == steps:
                break
        if done % 75 == 0:
            print(f"step {done}: -ELBO {loss.item():.2f}")
    model.eval()
    with torch.no_grad():
        test_loss = model.negative_elbo(test_x).item()
    print(f"test -ELBO {test_loss:.2f}")
    report(test_loss, higher_is_better=False)


if __name__ == "__main__":
    main()
