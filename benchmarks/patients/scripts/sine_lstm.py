"""Predicting the next value of noisy sine waves with two stacked LSTM cells."""

import math

import torch
from common import options, report
from torch import nn


class Sequence(nn.Module):
    def __init__(self, hidden: int = 24) -> None:
        super().__init__()
        self.hidden = hidden
        self.lstm1 = nn.LSTMCell(1, hidden)
        self.lstm2 = nn.LSTMCell(hidden, hidden)
        self.linear = nn.Linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h1 = c1 = h2 = c2 = torch.zeros(x.size(0), self.hidden)
        outputs = []
        for value in x.split(1, dim=1):
            h1, c1 = self.lstm1(value, (h1, c1))
            h2, c2 = self.lstm2(h1, (h2, c2))
            outputs.append(self.linear(h2))
        return torch.cat(outputs, dim=1)


def waves(n: int, length: int = 30) -> torch.Tensor:
    phase = 2 * math.pi * torch.rand(n, 1)
    period = 12 + 6 * torch.rand(n, 1)
    return torch.sin(2 * math.pi * torch.arange(length + 1) / period + phase) + 0.02 * torch.randn(n, length + 1)


def main() -> None:
    args = options()
    data, test = waves(200), waves(100)
    model = Sequence()
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(args.steps or 180):
        batch = data[torch.randint(200, (32,))]
        optimizer.zero_grad()
        loss = criterion(model(batch[:, :-1]), batch[:, 1:])
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print("step", step, "loss", loss.item())
    with torch.no_grad():
        report(criterion(model(test[:, :-1]), test[:, 1:]).item(), higher_is_better=False)


if __name__ == "__main__":
    main()
