"""Sparse autoencoder: overcomplete ReLU code with an L1 penalty."""

import torch
import torch.nn as nn
from common import options, report
from sklearn.datasets import load_digits

L1 = 2e-3


class SparseAutoencoder(nn.Module):
    def __init__(self, inputs: int = 64, code: int = 160) -> None:
        super().__init__()
        self.encoder = nn.Linear(inputs, code)
        self.decoder = nn.Linear(code, inputs)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        code = torch.relu(self.encoder(x))
        return self.decoder(code), code


def main() -> None:
    args = options()
    x = torch.as_tensor(load_digits().data, dtype=torch.float32)
    x = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(0))]
    train, held_out = x[:1500], x[1500:]
    mean, scale = train.mean(0), train.std()
    train, held_out = (train - mean) / scale, (held_out - mean) / scale

    model = SparseAutoencoder()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(args.steps or 400):
        batch = train[torch.randint(0, len(train), (128,))]
        recon, code = model(batch)
        mse = (recon - batch).pow(2).mean()
        loss = mse + L1 * code.abs().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0:
            active = (code > 0).float().mean().item()
            print(f"{step}: mse {mse.item():.4f}, active {active:.2%}")
    with torch.no_grad():
        recon, code = model(held_out)
        error = ((recon - held_out).pow(2).mean() / held_out.pow(2).mean()).item()
    print(f"unexplained variance {error:.4f}, active {(code > 0).float().mean().item():.2%}")
    report(error, higher_is_better=False)


if __name__ == "__main__":
    main()
