"""A check-up of ResNet-18 on handwritten digits, with the layers that are to be looked at chosen by name.

The script has a usual mistake: after the first epoch the model is put into evaluation mode to be tested, and stays
there. The check-up says so; with `model.train()` where it belongs, the second run is clean.

    python examples/cases/resnet_checkup.py [--quick] [--out runs]
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import gradmedic as gm

TRAIN = 1437  # of 1797 images, 8 x 8 pixels

#: The stem, both ends of the residual stages, and what decides: patterns as those of files.
CHOSEN = ["bn1", "layer1.*.conv?", "layer4.*.conv?", "fc"]


class BasicBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = nn.Sequential()
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(branch + self.downsample(x))


class ResNet18(nn.Module):
    """The ResNet-18 of He et al. (2016) with a stem for small images: [batch, 1, 8, 8] to logits [batch, 10]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(BasicBlock(2 * width, 4 * width, 2), BasicBlock(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(BasicBlock(4 * width, 8 * width, 2), BasicBlock(8 * width, 8 * width, 1))
        self.fc = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


def train(mended: bool, record: Path, epochs: int, width: int) -> list[gm.Finding]:
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    labels = torch.tensor(digits.target)
    model = ResNet18(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    with gm.watch(model, optimizer, record=record, overwrite=True, modules=CHOSEN, modules_every=10) as monitor:
        model.train()
        for epoch in range(epochs):
            if mended:
                model.train()
            for rows in torch.randperm(TRAIN).split(64):
                loss = F.cross_entropy(model(images[rows]), labels[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                accuracy = (model(images[TRAIN:]).argmax(1) == labels[TRAIN:]).float().mean().item()
            monitor.log(accuracy=accuracy)
            print(f"{record.name}, epoch {epoch}: loss {loss.item():.3f}, test accuracy {accuracy:.3f}")
    return monitor.diagnose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a narrower model and fewer epochs: seconds")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="runs and pictures go to OUT/resnet_checkup, anew each time"
    )
    args = parser.parse_args()
    out = args.out / "resnet_checkup"
    epochs, width = (2, 4) if args.quick else (4, 12)
    for name, mended in (("as_written", False), ("mended", True)):
        findings = train(mended, out / name, epochs, width)
        print(*findings or ["nothing found"], sep="\n")
        figures = {
            "flow": gm.plot.gradient_flow(out / name, layers=CHOSEN, metric="rms"),
            "activations": gm.plot.heatmap(out / name, metric="activation_rms", layers=CHOSEN),
            "updates": gm.plot.evolution(out / name, metric="update_ratio", layers=["conv1", "layer4.1", "fc"]),
            "loss": gm.plot.loss(out / name, findings=findings),
        }
        for figure, ax in figures.items():
            ax.figure.savefig(out / f"{figure}-{name}.png", dpi=80)


if __name__ == "__main__":
    main()
