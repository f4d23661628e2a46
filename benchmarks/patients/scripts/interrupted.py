"""Training that is stopped with Ctrl-C before its last epoch and still evaluates what it has."""

import signal

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    args = options()
    stop_at = args.steps or 300
    digits = load_digits()
    x = torch.tensor(digits.data, dtype=torch.float32).sub(4.9).div(6.0)
    y = torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(x[:1437], y[:1437]), batch_size=48, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = 0
    try:
        for epoch in range(100):
            for xb, yb in loader:
                loss = F.cross_entropy(model(xb), yb)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step += 1
                if step == stop_at:
                    signal.raise_signal(signal.SIGINT)  # somebody presses Ctrl-C
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    except KeyboardInterrupt:
        print(f"interrupted after {step} steps")
    model.eval()
    with torch.no_grad():
        report((model(x[1437:]).argmax(1) == y[1437:]).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
