"""CNN with parallel branches and an auxiliary classifier, GoogLeNet style."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Branches(nn.Module):
    def __init__(self, n_in: int, n_branch: int) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(n_in, n_branch, 1)
        self.middle = nn.Conv2d(n_in, n_branch, 3, padding=1)
        self.wide = nn.Conv2d(n_in, n_branch, 5, padding=2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(torch.cat([self.narrow(x), self.middle(x), self.wide(x)], dim=1))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 3, padding=1)
        self.block1 = Branches(12, 8)
        self.aux = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, 10))
        self.block2 = Branches(24, 12)
        self.head = nn.Linear(36 * 4, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.stem(x))
        x = self.block1(x)
        aux = self.aux(x)
        x = F.max_pool2d(x, 2)
        x = F.max_pool2d(self.block2(x), 2)
        return self.head(x.flatten(1)), aux


def main() -> None:
    opt = options(("F22",))
    digits = load_digits()
    x = torch.tensor(digits.images[:, None] / 16.0, dtype=torch.float32)
    y = torch.tensor(digits.target)
    train, test = train_test_split(torch.arange(len(y)), test_size=300, random_state=opt.seed)
    loader = DataLoader(TensorDataset(x[train], y[train]), batch_size=40, shuffle=True)

    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    max_steps = opt.steps or 150
    step = 0
    while step < max_steps:
        model.train()
        for images, labels in loader:
            logits, aux = model(images)
            loss = F.cross_entropy(logits, labels)
            if opt.fault != "F22":
                loss = loss + 0.3 * F.cross_entropy(aux, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == max_steps:
                break

    model.eval()
    with torch.no_grad():
        logits, _ = model(x[test])
        accuracy = (logits.argmax(1) == y[test]).float().mean()
    report(accuracy.item(), higher_is_better=True)


if __name__ == "__main__":
    main()
