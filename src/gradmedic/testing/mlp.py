"""A multilayer perceptron on clouds of points."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gradmedic.testing.case import Batch, Case, fault_of, seeded, supervised
from gradmedic.testing.tasks import CLASSES, clusters

FAULTS: dict[str, tuple[str, str]] = {
    "not_in_optimizer": ("GM103", "the optimizer was given the last layer only"),
    "no_zero_grad": ("GM107", "gradients are never cleared"),
    "clip_after_step": ("GM108", "gradients are clipped after the step that uses them"),
    "schedule_by_batch": ("GM111", "a schedule made for epochs is stepped on every batch"),
    "nan_in_data": ("GM201", "one number of the 21st batch is NaN"),
    "sigmoid_depth": ("GM301", "twenty sigmoid layers"),
    "dead_units": ("GM303", "the second layer's biases are at -10, below what its inputs can lift"),
    "same_weights": ("GM305", "every weight of the hidden layers begins at 0.1"),
    "learning_rate_high": ("GM401", "a learning rate a thousand times too high"),
    "over_clipping": ("GM403", "gradients are clipped to a thousandth of their usual norm"),
    "softmax_twice": ("GM501", "the model ends in a softmax, and cross-entropy takes another one"),
    "wrong_sign": ("GM504", "the loss is maximised"),
    "unshuffled": ("GM511", "each batch holds one class only, one class after the other"),
}

WIDTH = 32


def mlp(fault: str | None = None, *, seed: int = 0) -> Case:
    """Return a multilayer perceptron (three layers of 32 ReLU units) that learns to tell ten clouds of points apart.

    Args:
        fault: see `faults()`; None for a healthy training.
        seed: of weights and data.

    Raises:
        InputError: there is no such fault.

    Example:
        >>> mlp("softmax_twice").code
        'GM501'
    """
    known = fault_of("mlp", fault, FAULTS)
    with seeded(seed):
        model = _model(fault)
    trained = model[-1].parameters() if fault == "not_in_optimizer" else model.parameters()
    optimizer = torch.optim.SGD(trained, lr=100.0 if fault == "learning_rate_high" else 0.1, momentum=0.9)
    after: Callable[[], Any] | None = None
    if fault == "clip_after_step":
        after = _clip(model, 1.0)
    if fault == "schedule_by_batch":
        after = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1).step
    step = supervised(
        model,
        optimizer,
        _data(fault, seed),
        _backwards if fault == "wrong_sign" else functional.cross_entropy,
        zero_grad=fault != "no_zero_grad",
        before_step=_clip(model, 1e-3) if fault == "over_clipping" else None,
        after_step=after,
    )
    return Case(model, optimizer, step, 260 if fault == "over_clipping" else 80, known)


def _model(fault: str | None) -> nn.Sequential:
    depth, activation = (20, nn.Sigmoid) if fault == "sigmoid_depth" else (3, nn.ReLU)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(WIDTH, WIDTH), activation()]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))
    if fault == "dead_units":
        nn.init.constant_(model[2].bias, -10.0)  # type: ignore[arg-type]
    if fault == "same_weights":
        for parameter in nn.Sequential(*layers).parameters():
            nn.init.constant_(parameter, 0.1)
    if fault == "softmax_twice":
        model.append(nn.Softmax(-1))
    return model


def _data(fault: str | None, seed: int) -> Callable[[int], Batch]:
    batch = clusters(seed, WIDTH, ordered=fault == "unshuffled")
    if fault != "nan_in_data":
        return batch

    def spoilt(step: int) -> Batch:
        inputs, classes = batch(step)
        if step == 20:
            inputs[3, 5] = float("nan")
        return inputs, classes

    return spoilt


def _backwards(logits: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
    return -functional.cross_entropy(logits, classes)


def _clip(model: nn.Module, max_norm: float) -> Callable[[], Any]:
    return lambda: nn.utils.clip_grad_norm_(model.parameters(), max_norm)
