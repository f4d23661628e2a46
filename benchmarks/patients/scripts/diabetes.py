"""Disease progression of the diabetes data, regressed by a small network."""

import numpy as np
import torch
from common import options, report
from sklearn.datasets import load_diabetes
from torch import nn


def make_model(fault: str | None) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1)]
    if fault == "F14":
        layers.append(nn.Tanh())
    elif fault == "F17":
        layers.append(nn.ReLU())
    return nn.Sequential(*layers)


def main() -> None:
    opt = options(("F14", "F17"))
    data = load_diabetes()
    order = np.random.RandomState(3).permutation(len(data.target))
    train, val = order[:340], order[340:]

    x = torch.tensor(data.data, dtype=torch.float32)
    x = (x - x[train].mean(dim=0)) / x[train].std(dim=0)
    y = torch.tensor(data.target, dtype=torch.float32).view(-1, 1)
    mean, std = (0.0, 1.0) if opt.fault == "F14" else (y[train].mean(), y[train].std())
    y = (y - mean) / std

    model = make_model(opt.fault)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-3)
    loss_fn = nn.MSELoss()

    step, max_steps = 0, opt.steps or 250
    while step < max_steps:
        np.random.shuffle(train)
        for start in range(0, len(train), 34):
            batch = train[start : start + 34]
            prediction = model(x[batch])
            loss = loss_fn(prediction, y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == max_steps:
                break
        with torch.no_grad():
            rmse = std * torch.sqrt(loss_fn(model(x[val]), y[val]))
        print(f"step {step} train {loss.item():.3f} val rmse {rmse:.1f}")

    report(rmse, higher_is_better=False)


if __name__ == "__main__":
    main()
