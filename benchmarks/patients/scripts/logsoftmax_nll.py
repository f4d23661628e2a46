"""The classic convolutional example: log_softmax in forward, nll_loss outside."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=3, padding=1)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=3, padding=1)
        self.conv2_drop = nn.Dropout2d(0.1)
        self.fc1 = nn.Linear(80, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2))
        x = F.relu(self.fc1(x.view(-1, 80)))
        return F.log_softmax(self.fc2(x), dim=1)


def test(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    loss, correct, n = 0.0, 0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += int(output.argmax(1).eq(target).sum())
            n += len(target)
    print(f"test: average loss {loss / n:.4f}, accuracy {correct}/{n}")
    return correct / n


def main() -> None:
    args = options()
    digits = load_digits()
    x = (torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16 - 0.3053) / 0.3760
    y = torch.tensor(digits.target)
    train_loader = DataLoader(TensorDataset(x[:1437], y[:1437]), batch_size=32, shuffle=True)
    test_loader = DataLoader(TensorDataset(x[1437:], y[1437:]), batch_size=360)
    model = Net()
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step, limit, accuracy = 0, args.steps or 400, 0.0
    while step < limit:
        model.train()
        for data, target in train_loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            step += 1
            if step >= limit:
                break
        accuracy = test(model, test_loader)
    report(accuracy, higher_is_better=True)


if __name__ == "__main__":
    main()
