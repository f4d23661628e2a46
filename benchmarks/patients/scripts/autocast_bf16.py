"""MLP on the digits under bfloat16 autocast; the weights stay in float32."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import nn


def mlp(depth: int = 3, width: int = 96) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(64, width), nn.LayerNorm(width), nn.GELU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.LayerNorm(width), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def main() -> None:
    opt = options()
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    x = (x - 0.305) / 0.376
    x_train, y_train, x_val, y_val = x[:1437], y[:1437], x[1437:], y[1437:]
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    total = opt.steps or 300
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=total)
    model.train()
    for step in range(total):
        pick = torch.randperm(len(x_train))[:64]
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(x_train[pick])
            loss = nn.functional.cross_entropy(logits, y_train[pick])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        schedule.step()
        if step % 60 == 0:
            print(f"{step:3d} {loss.item():.4f} {logits.dtype}")
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        accuracy = (model(x_val).argmax(1) == y_val).float().mean().item()
    report(accuracy, higher_is_better=True)


if __name__ == "__main__":
    main()
