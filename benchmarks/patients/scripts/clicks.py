"""Click prediction from logs: a dense tower, embeddings of user and recent items, and a top network."""

from collections import Counter

import numpy as np
import torch
import torch.nn as nn
from common import options, report
from sklearn.metrics import roc_auc_score
from torch.utils.data import DataLoader, TensorDataset

ITEMS, USERS, HISTORY, DENSE = 10_000, 500, 5, 6


def read_logs(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Dense features, user ids, ids of the last items (a few are very popular), clicks."""
    rng = np.random.default_rng(11)
    popularity = 1.0 / (np.arange(ITEMS) + 10.0)
    items = rng.choice(ITEMS, size=(rows, HISTORY), p=popularity / popularity.sum())
    items = rng.permutation(ITEMS)[items]
    users = rng.integers(0, USERS, rows)
    dense = rng.normal(size=(rows, DENSE)).astype(np.float32)
    appeal, taste = rng.normal(size=ITEMS), 0.7 * rng.normal(size=USERS)
    score = (
        1.5 * appeal[items].mean(1) * np.sqrt(HISTORY) + taste[users] + np.tanh(dense[:, 0] * dense[:, 1] + dense[:, 2])
    )
    clicks = rng.random(rows) < 1 / (1 + np.exp(-score))
    return dense, users, items, clicks.astype(np.float32)


def row_of_hash(items: np.ndarray, bits: int) -> np.ndarray:
    """Multiplicative hashing of the ids to rows of the table."""
    return ((items.astype(np.uint64) * 2654435761 % 2**32) >> np.uint64(32 - bits)).astype(np.int64) % ITEMS


def row_of_vocabulary(items: np.ndarray, min_count: int) -> np.ndarray:
    """Row of every item that was seen often enough; row 0 is for the others."""
    counts = Counter(items.ravel().tolist())
    known = [item for item, count in counts.most_common() if count >= min_count][: ITEMS - 1]
    lookup = np.zeros(ITEMS, dtype=np.int64)
    lookup[known] = np.arange(1, len(known) + 1)
    return lookup[items]


class ClickModel(nn.Module):
    def __init__(self, dim: int = 8, detach_dense: bool = False) -> None:
        super().__init__()
        self.user_table = nn.Embedding(USERS, dim)
        self.item_table = nn.Embedding(ITEMS, dim)
        self.bottom = nn.Sequential(nn.Linear(DENSE, 32), nn.ReLU(), nn.Linear(32, dim), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(3 * dim, 64), nn.ReLU(), nn.Linear(64, 1))
        self.detach_dense = detach_dense
        nn.init.normal_(self.user_table.weight, std=0.1)
        nn.init.normal_(self.item_table.weight, std=0.1)

    def forward(self, dense: torch.Tensor, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        bottom = self.bottom(dense)
        if self.detach_dense:
            bottom = bottom.detach()
        parts = [bottom, self.user_table(users), self.item_table(items).mean(dim=1)]
        return self.top(torch.cat(parts, dim=1)).squeeze(1)


def main() -> None:
    args = options(("F41", "F42", "F42b"))
    dense, users, items, clicks = read_logs(80_000)
    if args.fault == "F41":
        rows = row_of_hash(items, bits=4)
    else:
        rows = row_of_vocabulary(items, min_count=1500 if args.fault == "F42" else 1)
    arrays = [torch.from_numpy(a) for a in (dense, users, rows, clicks)]
    train = TensorDataset(*(a[:70_000] for a in arrays))
    loader = DataLoader(train, batch_size=512, shuffle=True, drop_last=True)

    model = ClickModel(detach_dense=args.fault == "F42b")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    criterion = nn.BCEWithLogitsLoss()
    limit = args.steps or 2 * len(loader)
    step = 0
    while step < limit:
        for batch_dense, batch_users, batch_items, batch_clicks in loader:
            optimizer.zero_grad()
            loss = criterion(model(batch_dense, batch_users, batch_items), batch_clicks)
            loss.backward()
            optimizer.step()
            step += 1
            if step % 100 == 0:
                print(f"{step}/{limit} loss {loss.item():.4f}")
            if step == limit:
                break

    with torch.no_grad():
        scores = model(arrays[0][70_000:], arrays[1][70_000:], arrays[2][70_000:])
    report(float(roc_auc_score(clicks[70_000:], scores.numpy())), True)


if __name__ == "__main__":
    main()
