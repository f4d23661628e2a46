"""A click model like DLRM, with sparse embeddings and two optimizers: one table is forgotten, one is hardly used.

Adam takes no sparse gradients, so that tables go to SparseAdam, by a list. The list misses a table, and the ids of
another are hashed into far fewer rows than it has. Both are said; then both are mended.

    python examples/cases/dlrm_sparse.py [--quick] [--out runs]
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradmedic as gm

ROWS = {"user": 2000, "item": 1000, "site": 100}
WIDTH, DENSE, BATCH = 16, 8, 256


class DLRM(nn.Module):
    """Dense features and ids to one logit: after Naumov et al. (2019), small."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.EmbeddingBag(rows, WIDTH, sparse=True) for name, rows in ROWS.items()})
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, WIDTH))
        pairs = (len(ROWS) + 1) * len(ROWS) // 2
        self.top = nn.Sequential(nn.Linear(WIDTH + pairs, 32), nn.ReLU(), nn.Linear(32, 1))
        for table in self.tables.values():
            nn.init.normal_(table.weight, std=WIDTH**-0.5)

    def forward(self, dense: Tensor, ids: dict[str, Tensor]) -> Tensor:
        bottom = self.bottom(dense)
        vectors = torch.stack([bottom, *(self.tables[name](ids[name]) for name in ROWS)], dim=1)
        row, column = torch.triu_indices(vectors.shape[1], vectors.shape[1], offset=1)
        products = (vectors @ vectors.mT)[:, row, column]
        return self.top(torch.cat([bottom, products], dim=1)).squeeze(1)


class Clicks:
    """A stream of impressions: ids as unequal as in life (Zipf), clicks that follow from who sees what where."""

    def __init__(self) -> None:
        self.taste = {name: torch.randn(rows, 4) for name, rows in ROWS.items()}
        self.weight = torch.randn(DENSE)

    def batch(self) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        ids = {name: (rows ** torch.rand(BATCH)).long() - 1 for name, rows in ROWS.items()}
        dense = torch.randn(BATCH, DENSE)
        user, item, site = (self.taste[name][ids[name]] for name in ROWS)
        logit = (user * item).sum(1) + site[:, 0] + dense @ self.weight - 1.5
        return dense, ids, (torch.rand(BATCH) < torch.sigmoid(logit)).float()


def train(mended: bool, record: Path, steps: int) -> list[gm.Finding]:
    torch.manual_seed(0)
    clicks, model = Clicks(), DLRM()
    sparse = ["user", "item", "site"] if mended else ["user", "item"]
    buckets = ROWS["item"] if mended else 16
    optimizers = {
        "dense": torch.optim.Adam([*model.bottom.parameters(), *model.top.parameters()], lr=3e-3),
        "tables": torch.optim.SparseAdam([model.tables[name].weight for name in sparse], lr=1e-2),
    }
    seen = []
    with gm.watch(model, optimizers, record=record, overwrite=True, modules_every=10) as monitor:
        for _ in range(steps):
            dense, ids, clicked = clicks.batch()
            bags = {name: each[:, None] for name, each in (ids | {"item": ids["item"] % buckets}).items()}
            loss = F.binary_cross_entropy_with_logits(model(dense, bags), clicked)
            model.zero_grad()
            loss.backward()
            for optimizer in optimizers.values():
                optimizer.step()
            seen.append(loss.item())
    print(f"{record.name}: log loss {sum(seen[-20:]) / 20:.3f} (mean of the last 20 steps)")
    return monitor.diagnose()


def rows_used(run: gm.Run) -> dict[str, tuple[int, int]]:
    """Return, by table, how many of its rows any sampled step has asked for, and how many there are."""
    rows = [row for row in run.modules.to_pylist() if row["what"] == "embedding" and row["module"]]
    extras = {row["module"]: dict(row["extra"]) for row in rows}  # later steps replace earlier ones
    return {name: (int(extra["touched"]), int(extra["rows"])) for name, extra in extras.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps: seconds")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="runs and pictures go to OUT/dlrm_sparse, anew each time"
    )
    args = parser.parse_args()
    out = args.out / "dlrm_sparse"
    steps = 60 if args.quick else 400
    for name, mended in (("as_written", False), ("mended", True)):
        findings = train(mended, out / name, steps)
        print(*findings or ["nothing found"], sep="\n")
        run = gm.open_run(out / name)
        for table, (used, rows) in rows_used(run).items():
            print(f"  {table}: {used} of {rows} rows used")
        figures = {
            "flow": gm.plot.gradient_flow(run, per="tensor"),
            "zeros": gm.plot.heatmap(run, metric="zero_share", layers="tables.*"),
            "loss": gm.plot.loss(run, findings=findings, optimizer="dense"),
        }
        for figure, ax in figures.items():
            ax.figure.savefig(out / f"{figure}-{name}.png", dpi=80)


if __name__ == "__main__":
    main()
