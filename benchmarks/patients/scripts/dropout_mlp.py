"""Wide MLP on the digits with dropout 0.6."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn


class DropoutMLP(nn.Module):
    def __init__(self, width: int = 256, p: float = 0.6) -> None:
        super().__init__()
        self.input = nn.Linear(64, width)
        self.hidden = nn.Linear(width, width)
        self.output = nn.Linear(width, 10)
        self.drop = nn.Dropout(p)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.input(x).relu())
        x = self.drop(self.hidden(x).relu())
        return self.output(x)


def main() -> None:
    args = options()
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x).float() / 16 - 0.3
    x_train, x_val, y_train, y_val = train_test_split(x, torch.tensor(y), test_size=0.2, random_state=9)
    model = DropoutMLP()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(1000):
        model.train()
        for step, pick in enumerate(torch.randperm(len(x_train)).split(64), start=epoch * 23):
            if step >= (args.steps or 390):
                break
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x_train[pick]), y_train[pick])
            loss.backward()
            optimizer.step()
        else:
            print(f"epoch {epoch}, loss {loss.item():.3f}")
            continue
        break
    model.eval()
    with torch.no_grad():
        report((model(x_val).argmax(1) == y_val).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
