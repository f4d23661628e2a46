"""No modules: the weights are plain tensors and the optimizer gets a list of them."""

import math

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import make_moons


def init(fan_in: int, fan_out: int) -> tuple[torch.Tensor, torch.Tensor]:
    w = torch.randn(fan_out, fan_in) * math.sqrt(2 / fan_in)
    return w.requires_grad_(), torch.zeros(fan_out, requires_grad=True)


def predict(params: list[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    w1, b1, w2, b2, w3, b3 = params
    h = torch.relu(F.linear(x, w1, b1))
    h = torch.relu(F.linear(h, w2, b2))
    return F.linear(h, w3, b3).squeeze(1)


def main() -> None:
    args = options()
    points, labels = make_moons(1200, noise=0.15, random_state=1)
    x = torch.tensor(points, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(labels, dtype=torch.float32)
    params = [*init(2, 32), *init(32, 32), *init(32, 1)]
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    for step in range(args.steps or 300):
        pick = torch.randint(900, (64,))
        loss = F.binary_cross_entropy_with_logits(predict(params, x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(step, loss.item())
    with torch.no_grad():
        accuracy = ((predict(params, x[900:]) > 0) == (y[900:] > 0.5)).float().mean().item()
    report(accuracy, higher_is_better=True)


if __name__ == "__main__":
    main()
