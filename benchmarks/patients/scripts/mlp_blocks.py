"""A narrow deep perceptron on concentric circles hidden among noise features."""

import numpy as np
import torch
from common import options, report
from sklearn.datasets import make_circles
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Tower(nn.Module):
    def __init__(self, n_in: int, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(n_in if i == 0 else width, width) for i in range(depth)])
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


class ListTower(nn.Module):
    def __init__(self, n_in: int, width: int, depth: int) -> None:
        super().__init__()
        self.layers = [nn.Linear(n_in if i == 0 else width, width) for i in range(depth)]
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.head(x)


def make_data(n: int, rng: np.random.Generator) -> TensorDataset:
    x, y = make_circles(n, noise=0.08, factor=0.5, random_state=int(rng.integers(1 << 30)))
    x = np.concatenate([2 * x, rng.normal(size=(n, 4))], axis=1)
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def main() -> None:
    opt = options(("F23", "F23b"))
    rng = np.random.default_rng(opt.seed)
    train = DataLoader(make_data(1500, rng), batch_size=50, shuffle=True)
    test_x, test_y = make_data(500, rng).tensors

    model = (ListTower if opt.fault == "F23" else Tower)(n_in=6, width=24, depth=3)
    parameters = model.head.parameters() if opt.fault == "F23b" else model.parameters()
    optimizer = torch.optim.Adam(parameters, lr=0.01)
    criterion = nn.CrossEntropyLoss()

    steps = opt.steps or 300
    taken = 0
    while taken < steps:
        for x, y in train:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            taken += 1
            if taken == steps:
                break
        print(f"{taken}: {loss.item():.4f}")

    with torch.no_grad():
        accuracy = (model(test_x).argmax(dim=1) == test_y).float().mean().item()
    report(accuracy, higher_is_better=True)


if __name__ == "__main__":
    main()
