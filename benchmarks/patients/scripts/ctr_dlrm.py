"""Click-through model in the manner of DLRM: dense tower, embeddings of Zipf-distributed ids, pairwise interaction."""

import numpy as np
import torch
from common import options, report
from sklearn.metrics import roc_auc_score
from torch import nn

ROWS, FIELDS, DENSE, DIM = 10_000, 3, 6, 8


def make_log(n: int, rng: np.random.Generator, world: dict) -> tuple:
    ids = np.minimum(rng.zipf(1.25, size=(n, FIELDS)) - 1, ROWS * 50) % ROWS
    dense = rng.lognormal(0.0, 1.0, size=(n, DENSE))
    logit = np.log1p(dense) @ world["dense"] + sum(world["field"][f][ids[:, f]] for f in range(FIELDS)) - 1.0
    click = rng.random(n) < 1 / (1 + np.exp(-logit))
    return (
        torch.tensor(np.log1p(dense), dtype=torch.float32),
        torch.tensor(ids),
        torch.tensor(click, dtype=torch.float32),
    )


class DLRM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, DIM), nn.ReLU())
        self.tables = nn.ModuleList(nn.Embedding(ROWS, DIM) for _ in range(FIELDS))
        pairs = (FIELDS + 1) * FIELDS // 2
        self.top = nn.Sequential(nn.Linear(DIM * (FIELDS + 1) + pairs, 32), nn.ReLU(), nn.Linear(32, 1))
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.1)
        self.register_buffer("pair_index", torch.triu_indices(FIELDS + 1, FIELDS + 1, offset=1))

    def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        vectors = torch.stack([self.bottom(dense)] + [t(ids[:, f]) for f, t in enumerate(self.tables)], dim=1)
        gram = vectors @ vectors.transpose(1, 2)
        pairs = gram[:, self.pair_index[0], self.pair_index[1]]
        return self.top(torch.cat([vectors.flatten(1), pairs], dim=1)).squeeze(1)


def main() -> None:
    args = options()
    rng = np.random.default_rng(args.seed)
    world = {"dense": rng.normal(0, 1, DENSE), "field": rng.normal(0, 1.0, (FIELDS, ROWS))}
    steps, batch = args.steps or 300, 256
    dense, ids, click = make_log(steps * batch, rng, world)
    test = make_log(5000, rng, world)
    model = DLRM()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    criterion = nn.BCEWithLogitsLoss()
    for step in range(steps):
        rows = slice(step * batch, (step + 1) * batch)
        loss = criterion(model(dense[rows], ids[rows]), click[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"step {step} logloss {loss.item():.4f}")
    with torch.no_grad():
        auc = float(roc_auc_score(test[2].numpy(), model(test[0], test[1]).numpy()))
    seen = [len(ids[:, f].unique()) / ROWS for f in range(FIELDS)]
    print(f"auc {auc:.4f}; ids seen {seen}; click rate {click.mean().item():.3f}")
    report(auc, higher_is_better=True)


if __name__ == "__main__":
    main()
