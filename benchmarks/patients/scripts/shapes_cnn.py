"""Discs, squares, crosses and rings: a CNN on generated 16x16 images."""

import numpy as np
import torch
from common import options, report
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    """Noisy images of one shape each, at a random place and of a random size."""

    def __init__(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.labels = rng.integers(0, 4, size=n)
        self.images = np.stack([self.draw(rng, label) for label in self.labels]).astype(np.float32)

    @staticmethod
    def draw(rng: np.random.Generator, label: int) -> np.ndarray:
        cy, cx = rng.uniform(5, 10, size=2)
        size = rng.uniform(3, 5)
        dy, dx = (np.abs(axis - c) for axis, c in zip(np.ogrid[:16, :16], (cy, cx), strict=True))
        radius = np.sqrt(dy**2 + dx**2)
        mask = (
            radius < size,
            np.maximum(dy, dx) < 0.85 * size,
            ((dy < 1) | (dx < 1)) & (np.maximum(dy, dx) < size),
            np.abs(radius - size) < 1,
        )[label]
        return mask[None] + rng.normal(0, 0.3, size=(1, 16, 16))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        return self.images[index], self.labels[index]


def block(n_in: int, n_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(n_in, n_out, 3, padding=1), nn.ReLU(inplace=True), nn.MaxPool2d(2))


def he_init(module: nn.Module) -> None:
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        nn.init.zeros_(module.bias)


def main() -> None:
    opt = options(("F18",))
    train_loader = DataLoader(Shapes(2560, seed=opt.seed), batch_size=256, shuffle=True)
    val_loader = DataLoader(Shapes(600, seed=10_000), batch_size=300)

    model = nn.Sequential(block(1, 6), block(6, 12), nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Linear(32, 4))
    model.apply(he_init)
    criterion = nn.CrossEntropyLoss(reduction="sum" if opt.fault == "F18" else "mean")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.7)

    max_steps = opt.steps or 160
    step = 0
    while step < max_steps:
        for images, labels in train_loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}")
            if step >= max_steps:
                break

    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in val_loader:
            correct += (model(images).argmax(1) == labels).sum().item()
    report(correct / 600, higher_is_better=True)


if __name__ == "__main__":
    main()
