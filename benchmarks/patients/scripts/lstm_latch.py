"""Latch task: the first symbol of a noisy sequence decides its class; LSTM with a large forget-gate bias."""

import torch
from common import options, report
from torch import nn

LENGTH, CLASSES = 40, 4


class Latch(nn.Module):
    def __init__(self, hidden: int = 32, forget_bias: float = 5.0) -> None:
        super().__init__()
        self.lstm = nn.LSTM(CLASSES + 2, hidden, batch_first=True)
        self.out = nn.Linear(hidden, CLASSES)
        with torch.no_grad():
            self.lstm.bias_ih_l0[hidden : 2 * hidden] = forget_bias
            self.lstm.bias_hh_l0[hidden : 2 * hidden] = 0.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


def make_batch(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    target = torch.randint(CLASSES, (n,))
    x = torch.cat([torch.zeros(n, LENGTH, CLASSES), 0.5 * torch.randn(n, LENGTH, 2)], dim=-1)
    x[torch.arange(n), 0, target] = 3.0
    return x, target


def main() -> None:
    args = options()
    model = Latch()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()
    for step in range(args.steps or 250):
        x, target = make_batch(32)
        loss = loss_fn(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item())
    with torch.no_grad():
        x, target = make_batch(1000)
        report((model(x).argmax(1) == target).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
