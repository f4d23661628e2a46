"""CNN with batch norm on the digits, one-cycle learning rate down to almost nothing."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.classifier = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(x).flatten(1))


def main() -> None:
    args = options()
    total = args.steps or 400
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    y = torch.tensor(digits.target)
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    train, val = shuffled[:1400], shuffled[1400:]
    model = ConvNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    scheduler = OneCycleLR(optimizer, max_lr=0.2, total_steps=total, pct_start=0.2, final_div_factor=1e5)
    criterion = nn.CrossEntropyLoss()
    for step in range(total):
        model.train()
        i = train[torch.randint(len(train), (96,))]
        optimizer.zero_grad()
        loss = criterion(model(x[i]), y[i])
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 50 == 0 or step == total - 1:
            print(f"{step} lr {scheduler.get_last_lr()[0]:.2e} loss {loss.item():.5f}")
    model.eval()
    with torch.no_grad():
        report((model(x[val]).argmax(1) == y[val]).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
