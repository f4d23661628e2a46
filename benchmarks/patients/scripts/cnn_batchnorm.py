"""CNN with batch normalisation on the digits, with a snapshot of the untrained network for comparison."""

import copy

import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def conv_block(n_in: int, n_out: int, stride: int) -> list[nn.Module]:
    return [nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False), nn.BatchNorm2d(n_out), nn.ReLU()]


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *conv_block(1, 12, 1),
            *conv_block(12, 24, 2),
            *conv_block(24, 24, 2),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Linear(24, 10)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    hits = [(model(x).argmax(1) == y) for x, y in loader]
    return torch.cat(hits).float().mean().item()


def main() -> None:
    opt = options(("F24", "F25"))
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None]
    x = (x - 4.9) / 6.0
    y = torch.tensor(digits.target)
    train_loader = DataLoader(TensorDataset(x[:1437], y[:1437]), batch_size=64, shuffle=True)
    test_loader = DataLoader(TensorDataset(x[1437:], y[1437:]), batch_size=120)

    model = ConvNet()
    if opt.fault == "F24":
        for module in model.modules():
            if not isinstance(module, nn.BatchNorm2d):
                for p in module.parameters(recurse=False):
                    p.requires_grad = False

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    untrained = copy.deepcopy(model)
    if opt.fault == "F25":
        model, untrained = untrained, model
    criterion = nn.CrossEntropyLoss()

    step, max_steps = 0, opt.steps or 230
    while step < max_steps:
        model.train()
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            step += 1
            if step == max_steps:
                break
        print(f"step {step}: loss {loss.item():.3f}, test accuracy {test(model, test_loader):.3f}")

    print("untrained network:", test(untrained, test_loader))
    report(test(model, test_loader), higher_is_better=True)


if __name__ == "__main__":
    main()
