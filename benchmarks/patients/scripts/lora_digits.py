"""An MLP pretrained on the digits 0-4 is frozen and adapted to 5-9 with low-rank adapters and a new head."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn


class LoRALinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.base = base
        for p in base.parameters():
            p.requires_grad = False
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scaling = alpha / rank

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scaling * F.linear(F.linear(x, self.lora_A), self.lora_B)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 128)
        self.fc2 = nn.Linear(128, 128)
        self.head = nn.Linear(128, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.gelu(self.fc2(F.gelu(self.fc1(x)))))


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int, lr: float) -> None:
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=lr)
    model.train()
    for step in range(steps):
        pick = torch.randint(len(x), (64,))
        loss = F.cross_entropy(model(x[pick]), y[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            print(f"  step {step} loss {loss.item():.4f}")


def main() -> None:
    args = options()
    digits = load_digits()
    x = torch.tensor((digits.data - 4.88) / 6.02, dtype=torch.float32)
    y = torch.tensor(digits.target)
    old, new = y < 5, y >= 5
    x_new, y_new = x[new], y[new] - 5
    steps = args.steps or 350

    model = MLP()
    print("pretraining")
    train(model, x[old], y[old], steps - steps * 4 // 7, lr=2e-3)

    model.fc1 = LoRALinear(model.fc1)
    model.fc2 = LoRALinear(model.fc2)
    model.head = nn.Linear(128, 5)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"fine-tuning {trainable} of {sum(p.numel() for p in model.parameters())} parameters")
    train(model, x_new[:650], y_new[:650], steps * 4 // 7, lr=3e-3)

    model.eval()
    with torch.no_grad():
        accuracy = (model(x_new[650:]).argmax(1) == y_new[650:]).float().mean().item()
    report(accuracy, higher_is_better=True)


if __name__ == "__main__":
    main()
