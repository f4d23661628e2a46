"""The adding problem with 50 time steps: a GRU regresses the sum of the two marked numbers."""

import torch
from common import options, report
from torch import nn


def adding_batch(batch: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    values = torch.rand(batch, length)
    marks = torch.zeros(batch, length)
    first = torch.randint(0, length // 2, (batch, 1))
    second = torch.randint(length // 2, length, (batch, 1))
    marks.scatter_(1, first, 1.0).scatter_(1, second, 1.0)
    return torch.stack([values, marks], dim=-1), (values * marks).sum(1)


class Adder(nn.Module):
    def __init__(self, hidden: int = 40) -> None:
        super().__init__()
        self.gru = nn.GRU(2, hidden, batch_first=True)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        _, last = self.gru(x)
        return self.readout(last[-1]).squeeze(-1)


if __name__ == "__main__":
    args = options()
    model = Adder()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    mse = nn.MSELoss()
    for step in range(args.steps or 320):
        x, y = adding_batch(48, 50)
        loss = mse(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item())
    model.eval()
    x, y = adding_batch(1000, 50)
    with torch.no_grad():
        test = mse(model(x), y).item()
    print("test mse", test)  # predicting the mean gives 0.167
    report(test, higher_is_better=False)
