"""ResNet-18 for small images (He et al. 2016, arXiv:1512.03385), narrow enough for a CPU."""

from __future__ import annotations

import copy
import itertools

import torch
from torch import nn
from torch.nn import functional

from gradmedic.testing.case import Case, fault_of, seeded, supervised
from gradmedic.testing.tasks import CLASSES, gratings

FAULTS: dict[str, tuple[str, str]] = {
    "unused_head": ("GM101", "an auxiliary head whose output never reaches the loss"),
    "detached": ("GM102", "the second stage's output is detached"),
    "stale_optimizer": ("GM105", "the model is copied after the optimizer was built"),
    "eval_mode": ("GM109", "the model trains in eval mode"),
}


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features [batch, outside, height / stride, width / stride]."""
        branch = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(branch + self.shortcut(x))


class ResNet18(nn.Module):
    """Eight blocks in four stages; the stem keeps the size, so that images of 8 to 32 pixels do.

    Args:
        width: channels of the first stage; 64 is the original's.
        classes: outputs.
        detach: cut the graph behind the second stage.
        auxiliary: also compute a second head, and do not use it.
    """

    def __init__(
        self, width: int = 8, classes: int = CLASSES, *, detach: bool = False, auxiliary: bool = False
    ) -> None:
        super().__init__()
        self.detach = detach
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        self.stages = nn.ModuleList(
            nn.Sequential(Block(inside, outside, 1 if stage == 0 else 2), Block(outside, outside, 1))
            for stage, (inside, outside) in enumerate(itertools.pairwise(widths))
        )
        self.fc = nn.Linear(8 * width, classes)
        self.auxiliary = nn.Linear(4 * width, classes) if auxiliary else None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits [batch, classes] of images [batch, 3, height, width]."""
        x = self.stem(images)
        for number, stage in enumerate(self.stages):
            x = stage(x)
            if self.detach and number == 1:
                x = x.detach()
            if self.auxiliary is not None and number == 2:
                self.auxiliary(x.mean((2, 3)))
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits


def resnet18(fault: str | None = None, *, seed: int = 0, side: int = 8, width: int = 8) -> Case:
    """Return a ResNet-18 that learns the direction of stripes in small images.

    Args:
        fault: see `faults()`; None for a healthy training.
        seed: of weights and data.
        side: height and width of the images, 8 to 32.
        width: channels of the first stage.

    Raises:
        InputError: there is no such fault.

    Example:
        >>> resnet18("detached").code
        'GM102'
    """
    known = fault_of("resnet18", fault, FAULTS)
    with seeded(seed):
        model = ResNet18(width, detach=fault == "detached", auxiliary=fault == "unused_head")
    model.train(fault != "eval_mode")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if fault == "stale_optimizer":
        model = copy.deepcopy(model)
    step = supervised(model, optimizer, gratings(seed, side), functional.cross_entropy)
    return Case(model, optimizer, step, 40, known)
