"""CNN on the digits with gradients accumulated over eight micro-batches of 16."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

ACCUMULATION = 8


def build() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(24 * 4, 10),
    )


def main() -> None:
    args = options()
    max_updates = args.steps or 150
    digits = load_digits()
    dataset = TensorDataset(torch.tensor(digits.images[:, None] / 16.0).float(), torch.tensor(digits.target))
    train, test = random_split(dataset, [0.8, 0.2], generator=torch.Generator().manual_seed(42))
    loader = DataLoader(train, batch_size=16, shuffle=True, drop_last=True)
    model, criterion = build(), nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    updates, micro = 0, 0
    while updates < max_updates:
        for x, y in loader:
            loss = criterion(model(x), y) / ACCUMULATION
            loss.backward()
            micro += 1
            if micro % ACCUMULATION == 0:
                optimizer.step()
                optimizer.zero_grad()
                updates += 1
                if updates % 25 == 0:
                    print(updates, loss.item() * ACCUMULATION)
            if updates >= max_updates:
                break
    model.eval()
    x, y = next(iter(DataLoader(test, batch_size=len(test))))
    with torch.no_grad():
        report((model(x).argmax(1) == y).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
