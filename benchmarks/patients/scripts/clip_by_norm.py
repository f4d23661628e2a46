"""CNN on the digits; the gradient norm is clipped at every step."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import clip_grad_norm_


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.leaky_relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.leaky_relu(self.conv2(x)), 2)
        return self.fc(x.flatten(1))


def main() -> None:
    args = options()
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    x = (x - 0.3) / 0.38
    y = torch.tensor(digits.target)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(args.steps or 300):
        i = torch.randint(1437, (64,))
        loss = F.cross_entropy(model(x[i]), y[i])
        optimizer.zero_grad()
        loss.backward()
        norm = clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        if step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f} norm {norm.item():.3f}")
    model.eval()
    with torch.no_grad():
        report((model(x[1437:]).argmax(1) == y[1437:]).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
