"""Matrix factorisation of ratings with sparse embedding gradients and SparseAdam."""

import torch
from common import options, report
from torch import nn

USERS, ITEMS, RANK = 600, 400, 4


class Factorization(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user = nn.Embedding(USERS, RANK, sparse=True)
        self.item = nn.Embedding(ITEMS, RANK, sparse=True)
        self.user_bias = nn.Embedding(USERS, 1, sparse=True)
        self.item_bias = nn.Embedding(ITEMS, 1, sparse=True)
        for table in (self.user, self.item):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, u: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        dot = (self.user(u) * self.item(i)).sum(-1)
        return dot + self.user_bias(u).squeeze(-1) + self.item_bias(i).squeeze(-1)


def ratings(n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(4)
    p = torch.randn(USERS, RANK, generator=g) / RANK**0.25
    q = torch.randn(ITEMS, RANK, generator=g) / RANK**0.25
    bias = 0.5 * torch.randn(ITEMS, generator=g)
    popularity = 1.0 / torch.arange(1, ITEMS + 1).float() ** 0.5
    u = torch.randint(USERS, (n,), generator=g)
    i = torch.multinomial(popularity, n, replacement=True, generator=g)
    r = (p[u] * q[i]).sum(-1) + bias[i] + 0.2 * torch.randn(n, generator=g)
    return u, i, r


def main() -> None:
    args = options()
    u, i, r = ratings(60_000)
    test = slice(55_000, 60_000)
    model = Factorization()
    optimizer = torch.optim.SparseAdam(list(model.parameters()), lr=0.03)
    order = torch.randperm(55_000)
    for step in range(args.steps or 400):
        start = step * 512 % (55_000 - 512)
        rows = order[start : start + 512]
        loss = (model(u[rows], i[rows]) - r[rows]).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} mse {loss.item():.4f}")
    with torch.no_grad():
        mse = (model(u[test], i[test]) - r[test]).pow(2).mean()
        print(f"variance of the ratings {r[test].var().item():.3f}")
        report(mse.item(), higher_is_better=False)


if __name__ == "__main__":
    main()
