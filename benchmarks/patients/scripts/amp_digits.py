"""Dense network on digits in float16 autocast."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 256)
        self.fc2 = nn.Linear(256, 256)
        self.fc3 = nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.relu(self.fc1(x))
        h = torch.relu(self.fc2(h))
        return self.fc3(h), h


def activity(hidden: torch.Tensor, summed: bool) -> torch.Tensor:
    """Penalty on activations above the target size of 0.1."""
    relative = (hidden / 0.1).square()
    return relative.sum() if summed else relative.mean()


def main() -> None:
    args = options(("F35", "F36"))
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / 16.0, y, test_size=0.25, random_state=1)
    train_set = TensorDataset(torch.tensor(x_train, dtype=torch.float32), torch.tensor(y_train))
    loader = DataLoader(train_set, batch_size=128, shuffle=True)

    net = Net()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", enabled=args.fault != "F35")
    weight = 1e-6 if args.fault == "F35" else 1.0

    step, total = 0, args.steps or 220
    while step < total:
        for xb, yb in loader:
            with torch.autocast("cpu", dtype=torch.float16):
                logits, hidden = net(xb)
                loss = criterion(logits, yb)
                if step >= 80:
                    loss = loss + 1e-3 * activity(hidden, summed=args.fault == "F36")
            optimizer.zero_grad()
            scaler.scale(loss * weight).backward()
            scaler.step(optimizer)
            scaler.update()
            step += 1
            if step % 40 == 0:
                print(f"{step}: loss {loss.item():.4f}")
            if step == total:
                break

    net.eval()
    with torch.no_grad():
        logits, _ = net(torch.tensor(x_test, dtype=torch.float32))
    report((logits.argmax(1) == torch.tensor(y_test)).float().mean().item(), True)


if __name__ == "__main__":
    main()
