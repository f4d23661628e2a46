"""Residual MLP with layer norm; weight decay on the matrices only, in two parameter groups."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn


class ResidualLayer(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.silu(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self, inputs: int, dim: int = 48, depth: int = 3) -> None:
        super().__init__()
        self.stem = nn.Linear(inputs, dim)
        self.layers = nn.ModuleList([ResidualLayer(dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).squeeze(-1)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    decay = [p for p in model.parameters() if p.dim() >= 2]
    no_decay = [p for p in model.parameters() if p.dim() < 2]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]


def main() -> None:
    args = options()
    steps = args.steps or 250
    x, y = load_breast_cancer(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.3, random_state=4, stratify=y)
    scaler = StandardScaler().fit(x_train)
    x_train = torch.tensor(scaler.transform(x_train), dtype=torch.float32)
    x_test = torch.tensor(scaler.transform(x_test), dtype=torch.float32)
    y_train, y_test = torch.tensor(y_train).float(), torch.tensor(y_test).float()

    model = Network(30)
    optimizer = torch.optim.AdamW(parameter_groups(model, 0.1), lr=1e-3, betas=(0.9, 0.98))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=1e-4)
    model.train()
    for step in range(steps):
        idx = torch.randint(len(x_train), (64,))
        loss = F.binary_cross_entropy_with_logits(model(x_train[idx]), y_train[idx])
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    with torch.no_grad():
        report(((model(x_test) > 0) == (y_test > 0.5)).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
