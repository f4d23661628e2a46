"""Two circles classified by a smooth MLP with a penalty on the gradient of the logit with respect to the input."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import make_circles
from torch import nn


def penalty(logits: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(logits.sum(), x, create_graph=True)
    return gradient.pow(2).sum(1).mean()


def main() -> None:
    args = options()
    points, labels = make_circles(1500, noise=0.08, factor=0.5, random_state=0)
    x = torch.tensor(points / points.std(), dtype=torch.float32)
    y = torch.tensor(labels, dtype=torch.float32)
    model = nn.Sequential(nn.Linear(2, 48), nn.Softplus(), nn.Linear(48, 48), nn.Softplus(), nn.Linear(48, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(args.steps or 350):
        idx = torch.randint(1000, (64,))
        xb = x[idx].requires_grad_(True)
        logits = model(xb).squeeze(1)
        fit = F.binary_cross_entropy_with_logits(logits, y[idx])
        smooth = penalty(logits, xb)
        loss = fit + 2e-3 * smooth
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"{step}: bce {fit.item():.4f} penalty {smooth.item():.3f}")
    model.eval()
    with torch.no_grad():
        accuracy = ((model(x[1000:]).squeeze(1) > 0) == (y[1000:] > 0.5)).float().mean().item()
    report(accuracy, higher_is_better=True)


if __name__ == "__main__":
    main()
