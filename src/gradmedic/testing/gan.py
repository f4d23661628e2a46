"""A generator and a discriminator of points on a ring (Goodfellow et al. 2014, arXiv:1406.2661)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from gradmedic.testing.case import Case, fault_of, generator, seeded
from gradmedic.testing.tasks import ring

FAULTS: dict[str, tuple[str, str]] = {
    "discriminator_wins": (
        "GM410",
        "a saturating generator loss, against a discriminator whose rate is a hundred times its own",
    ),
}

NOISE, WIDTH, SIZE = 8, 64, 64


def gan(fault: str | None = None, *, seed: int = 0) -> Case:
    """Return a GAN for points on a ring; its model and optimizer are mappings with the keys "G" and "D".

    Args:
        fault: see `faults()`; None for a healthy training.
        seed: of weights and data.

    Raises:
        InputError: there is no such fault.

    Example:
        >>> sorted(gan().model)
        ['D', 'G']
    """
    known = fault_of("gan", fault, FAULTS)
    with seeded(seed):
        made, judge = _perceptron(NOISE, 2, nn.ReLU()), _perceptron(2, 1, nn.LeakyReLU(0.2))
    wins = fault is not None
    optimizers = {
        "G": torch.optim.Adam(made.parameters(), lr=1e-4 if wins else 2e-3, betas=(0.5, 0.9)),
        "D": torch.optim.Adam(judge.parameters(), lr=1e-2 if wins else 2e-3, betas=(0.5, 0.9)),
    }
    real = ring(seed, SIZE)

    def step(number: int) -> torch.Tensor:
        noise = torch.randn(SIZE, NOISE, generator=generator(seed + 7, number))
        points = real(number) + (6.0 if wins else 0.0)  # far from what the generator makes at first
        optimizers["D"].zero_grad()
        loss = functional.softplus(-judge(points)).mean() + functional.softplus(judge(made(noise).detach())).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizers["D"].step()
        optimizers["G"].zero_grad()
        verdict = judge(made(noise))
        lost = -functional.softplus(verdict).mean() if wins else functional.softplus(-verdict).mean()
        lost.backward()  # type: ignore[no-untyped-call]
        optimizers["G"].step()
        return loss.detach()

    return Case({"G": made, "D": judge}, optimizers, step, 220 if wins else 300, known)


def _perceptron(inside: int, outside: int, activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inside, WIDTH), activation, nn.Linear(WIDTH, WIDTH), activation, nn.Linear(WIDTH, outside)
    )
