"""CNN on synthetic shapes with label smoothing."""

import numpy as np
import torch
from common import options, report
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Shapes(Dataset):
    """Noisy 16x16 images of a square, a disc, a cross or a diagonal."""

    def __init__(self, n: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        grid_y, grid_x = np.mgrid[0:16, 0:16]
        images, labels = [], rng.integers(0, 4, n)
        for label in labels:
            cx, cy, r = rng.uniform(5, 10), rng.uniform(5, 10), rng.uniform(3.0, 5.0)
            dx, dy = np.abs(grid_x - cx), np.abs(grid_y - cy)
            mask = [
                np.maximum(dx, dy) < r,
                dx**2 + dy**2 < r**2,
                ((dx < 1) | (dy < 1)) & (np.maximum(dx, dy) < r),
                (np.abs(grid_x - cx - (grid_y - cy)) < 1.2) & (dx < r),
            ][label]
            images.append(mask + 0.15 * rng.standard_normal((16, 16)))
        self.images = torch.tensor(np.array(images), dtype=torch.float32).unsqueeze(1)
        self.labels = torch.tensor(labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.images[i], self.labels[i]


def main() -> None:
    args = options()
    train, test = Shapes(1500, seed=1), Shapes(400, seed=2)
    loader = DataLoader(train, batch_size=50, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2, padding=2),
        nn.BatchNorm2d(12),
        nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, padding=1),
        nn.BatchNorm2d(24),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 16, 4),
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=0.15)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps, step = args.steps or 300, 0
    while step < steps:
        model.train()
        for x, y in loader:
            loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == steps:
                break
        print(step, loss.item())
    model.eval()
    with torch.no_grad():
        report((model(test.images).argmax(1) == test.labels).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
