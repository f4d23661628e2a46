"""Finds scratches in 16x16 pictures of a surface; one part in a hundred has one."""

import torch
import torch.nn.functional as F
from common import options, report
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

SIZE = 16


def pictures(count: int, share: float, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise; the first `share` of them with a faint diagonal scratch."""
    x = torch.randn(count, 1, SIZE, SIZE, generator=generator)
    y = torch.zeros(count, dtype=torch.long)
    y[: int(share * count)] = 1
    for i in range(int(share * count)):
        row = int(torch.randint(0, SIZE - 8, (1,), generator=generator))
        column = int(torch.randint(0, SIZE - 8, (1,), generator=generator))
        x[i, 0, row : row + 8, column : column + 8] += 2.0 * torch.eye(8)
    return x, y


class DefectNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 5, padding=2)
        self.conv2 = nn.Conv2d(12, 16, 5, padding=2)
        self.fc = nn.Linear(16, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.relu(self.conv2(x))
        return self.fc(x.amax(dim=(2, 3)))


def main() -> None:
    args = options(("F45",))
    generator = torch.Generator().manual_seed(1)
    x, y = pictures(6000, 0.01, generator)
    test_x, test_y = pictures(400, 0.5, generator)
    if args.fault == "F45":
        loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
    else:
        weight = torch.where(y == 1, 99.0, 1.0)
        loader = DataLoader(TensorDataset(x, y), batch_size=50, sampler=WeightedRandomSampler(weight, len(x)))

    net = DefectNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    steps = 0
    for epoch in range(100):
        for inputs, targets in loader:
            loss = F.cross_entropy(net(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            if steps == (args.steps or 240):
                break
        else:
            print(f"epoch {epoch + 1} done, loss {loss.item():.3f}")
            continue
        break

    with torch.no_grad():
        predicted = net(test_x).argmax(1)
    recall = [(predicted[test_y == c] == c).float().mean().item() for c in (0, 1)]
    print(f"recall of good parts {recall[0]:.2f}, of scratched ones {recall[1]:.2f}")
    report(sum(recall) / 2, True)


if __name__ == "__main__":
    main()
