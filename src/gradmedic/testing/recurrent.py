"""Recurrent networks that add up a sequence of numbers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gradmedic.testing.case import Case, Criterion, fault_of, seeded, supervised
from gradmedic.testing.tasks import running_sums

FAULTS: dict[str, tuple[str, str]] = {
    "learning_rate_high": ("GM401", "a learning rate a thousand times too high"),
    "relu_output": ("GM502", "the last layer is a ReLU, and half of the targets are negative"),
    "broadcast": ("GM515", "predictions [batch, 1] against targets [batch]: each is paired with each"),
}


class Summing(nn.Module):
    """Numbers [batch, time, 1] to one number [batch, 1], read off the last state."""

    def __init__(self, cell: type[nn.RNNBase], width: int = 24, *, relu: bool = False) -> None:
        super().__init__()
        self.recurrent = cell(1, width, batch_first=True)  # type: ignore[call-arg, arg-type]
        self.head = nn.Linear(width, 1)
        self.relu = relu

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return predictions."""
        out: torch.Tensor = self.head(self.recurrent(numbers)[0][:, -1])
        return functional.relu(out) if self.relu else out


def rnn(fault: str | None = None, *, seed: int = 0) -> Case:
    """Return a plain RNN (24 tanh units, twelve time steps) that learns to add.

    Args:
        fault: see `faults()`; None for a healthy training.
        seed: of weights and data.

    Raises:
        InputError: there is no such fault.

    Example:
        >>> rnn("broadcast").code
        'GM515'
    """
    return _case("rnn", nn.RNN, fault, seed)


def lstm(fault: str | None = None, *, seed: int = 0) -> Case:
    """Return an LSTM (24 cells, twelve time steps) that learns to add; arguments as for `rnn`.

    Example:
        >>> lstm("relu_output").code
        'GM502'
    """
    return _case("lstm", nn.LSTM, fault, seed)


def _case(name: str, cell: type[nn.RNNBase], fault: str | None, seed: int) -> Case:
    known = fault_of(name, fault, FAULTS)
    with seeded(seed):
        model = Summing(cell, relu=fault == "relu_output")
    optimizer = torch.optim.Adam(model.parameters(), lr=10.0 if fault == "learning_rate_high" else 1e-2)
    criterion: Criterion = functional.mse_loss
    if fault == "broadcast":

        def criterion(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return functional.mse_loss(prediction, target.flatten())

    step = supervised(
        model,
        optimizer,
        running_sums(seed),
        criterion,
        before_step=lambda: nn.utils.clip_grad_norm_(model.parameters(), 5.0),
    )
    return Case(model, optimizer, step, 120, known)
