"""Top-1 mixture of experts on piecewise regression; the router starts from the k-means centres of the inputs."""

import torch
from common import options, report
from sklearn.cluster import KMeans
from sklearn.datasets import make_blobs
from torch import nn

CENTERS = [[-3.0, 0.0, 1.0, 2.0], [3.0, 1.0, -1.0, 0.0], [0.0, 3.0, 2.0, -2.0], [0.0, -4.0, 0.0, 3.0]]
COUNTS = [1200, 1000, 900, 45]


class Expert(nn.Sequential):
    def __init__(self, dim: int, hidden: int = 32) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.SiLU(), nn.Linear(hidden, 1))


class MoE(nn.Module):
    def __init__(self, centers: torch.Tensor) -> None:
        super().__init__()
        n, dim = centers.shape
        self.router = nn.Linear(dim, n)
        self.experts = nn.ModuleList(Expert(dim) for _ in range(n))
        with torch.no_grad():
            self.router.weight.copy_(centers)
            self.router.bias.copy_(-0.5 * centers.pow(2).sum(1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, choice = self.router(x).softmax(-1).max(-1)
        out = x.new_zeros(len(x))
        for k, expert in enumerate(self.experts):
            rows = (choice == k).nonzero().squeeze(1)
            if len(rows):
                out = out.index_add(0, rows, expert(x[rows]).squeeze(1) * gate[rows])
        return out, choice


def make_data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x, region = make_blobs(COUNTS, 4, centers=CENTERS, cluster_std=0.7, random_state=seed)
    x, region = torch.tensor(x, dtype=torch.float32), torch.tensor(region)
    slopes = torch.randn(4, 4, generator=torch.Generator().manual_seed(11))
    y = (x * slopes[region]).sum(1) + torch.sin(2 * x[:, 0])
    return x, (y - y.mean()) / y.std()


def main() -> None:
    args = options()
    x, y = make_data(0)
    x_test, y_test = make_data(1)
    mean, std = x.mean(0), x.std(0)
    x, x_test = (x - mean) / std, (x_test - mean) / std
    centers = KMeans(4, n_init=4, random_state=0).fit(x.numpy()).cluster_centers_
    model = MoE(torch.tensor(centers, dtype=torch.float32))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    used = torch.zeros(4, dtype=torch.long)
    for step in range(args.steps or 350):
        pick = torch.randint(len(x), (48,))
        pred, choice = model(x[pick])
        loss = nn.functional.mse_loss(pred, y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        used += torch.bincount(choice, minlength=4)
        if step % 50 == 0:
            print(step, round(loss.item(), 4), used.tolist())
    with torch.no_grad():
        mse = nn.functional.mse_loss(model(x_test)[0], y_test).item()
    report(mse, higher_is_better=False)


if __name__ == "__main__":
    main()
