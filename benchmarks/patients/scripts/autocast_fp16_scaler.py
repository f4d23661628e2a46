"""CNN on the digits under float16 autocast with a dynamic loss scale."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn


class SmallCNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2)
        self.fc1 = nn.Linear(32 * 4, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def main() -> None:
    args = options()
    images, labels = load_digits(return_X_y=True)
    images = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    x_train, x_test, y_train, y_test = train_test_split(images, torch.tensor(labels), test_size=0.2, random_state=5)
    model = SmallCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=60)
    skipped = 0
    for step in range(args.steps or 280):
        idx = torch.randint(len(x_train), (64,))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x_train[idx]), y_train[idx])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
        if step % 40 == 0:
            print(f"step {step}, loss {loss.item():.4f}, scale {scaler.get_scale():.0f}, skipped {skipped}")
    model.eval()
    with torch.no_grad():
        accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
    report(accuracy, higher_is_better=True)


if __name__ == "__main__":
    main()
