"""Whole trainings on the pretended card; run by test_card.py in a process of its own, prints what it saw as JSON."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from pretended_card import NOT_DETERMINISTIC, OnCard, card, to_card
from torch import nn

import gradmedic as gm

STEPS = 7
SPOILT = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 24)
        self.norm, self.last = nn.LayerNorm(24), nn.Linear(24, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x)).to(self.second.weight.device)  # where `first` is on the host
        return self.last(self.norm(torch.relu(self.second(x))))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1e-2, fused=True)


CASES: dict[str, dict[str, Any]] = {
    "watched": {},
    "script's clip": {"clip": True},
    "clip.norm, script's clip": {"transform": lambda: gm.clip.norm(0.1), "clip": True},
    "agc": {"transform": gm.clip.agc},
    "layers": {"transform": lambda: gm.clip.layers({"second": gm.clip.value(0.01), "first": 0.1}, default=1.0)},
    "guard, SGD": {"transform": gm.guard.default, "spoilt": True, "optimizer": sgd},
    "skip and clip": {"transform": lambda: [gm.guard.skip_nonfinite(), gm.clip.norm(0.1)], "spoilt": True},
    "every 3": {"every": 3, "transform": lambda: gm.clip.norm(0.1)},
    "scaler": {"scaler": True, "transform": gm.guard.default, "spoilt": True},
    "scaler, script's clip": {"scaler": True, "clip": True},
    "some on the host": {"transform": lambda: gm.clip.norm(0.1), "on_host": True},
    "some on the host, by element": {"transform": lambda: gm.clip.value(0.001), "on_host": True},
}


def train(
    device: str,
    *,
    transform: Callable[[], Any] | None = None,
    clip: bool = False,
    spoilt: bool = False,
    scaler: bool = False,
    optimizer: Callable[[Any], torch.optim.Optimizer] = adamw,
    backend: str = "auto",
    every: int = 1,
    on_host: bool = False,
) -> tuple[list[dict[str, float]], list[float], dict[str, Any]]:
    """Return what the frames say, the weights, and what the card was asked for."""
    torch.manual_seed(0)
    on_card = device != "cpu"
    model = to_card(Net(), but="first" if on_host else None) if on_card else Net()
    stepped = optimizer(list(model.parameters()))
    amp = torch.amp.GradScaler(device, init_scale=256.0) if scaler else None
    given = None if transform is None else transform()
    given = gm.clip.chain(*given) if isinstance(given, list) else given
    counts: list[int] = []
    with OnCard() if on_card else nullcontext():
        backend = backend if on_card else "torch"
        card.reset()
        with gm.watch(model, stepped, transform=given, every=every, backend=backend, strict=True) as monitor:
            for step in range(STEPS):
                inputs = torch.ones(5, 8, device="cpu" if on_host else device) * (step + 1)
                inputs = inputs * math.nan if spoilt and step in (0, SPOILT) else inputs
                loss = (model(inputs) - torch.ones(5, 4, device=device)).square().mean()
                stepped.zero_grad()
                (loss if amp is None else amp.scale(loss)).backward()
                if amp is not None and clip:
                    amp.unscale_(stepped)
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.2)
                if amp is None:
                    stepped.step()
                else:
                    amp.step(stepped)
                    amp.update()
                monitor.log(mine=loss * 2)
                counts.append(card.copies)
            seen = {"waits": list(card.waits), "copies": counts, "own": monitor.overhead.host_syncs}
            seen["operations"] = dict(card.operations)
        seen["own_at_the_end"] = monitor.overhead.host_syncs
        frames = [
            {
                "grad_norm": frame.grad_norm,
                "post": frame.grad_norm_post,
                "loss": frame.loss,
                "mine": frame.logged["mine"],
                "skipped": frame.skipped,
                "nonfinite": frame.nonfinite,
                **({} if not len(frame.tensors) else {"norms": frame.tensors.column("norm").tolist()}),
                **({} if not len(frame.tensors) else {"updates": frame.tensors.column("update_norm").tolist()}),
            }
            for frame in monitor.run.frames()
        ]
    weights = [value for p in model.parameters() for value in _plain(p).flatten().tolist()]
    return frames, weights, seen


def _plain(parameter: torch.Tensor) -> torch.Tensor:
    return getattr(parameter, "there", parameter).detach()


def report(case: str) -> dict[str, Any]:
    frames, weights, seen = train("card", **CASES[case])
    expected, plain, _ = train("cpu", **CASES[case])
    unwatched = sorted(NOT_DETERMINISTIC & set(seen.pop("operations")))
    return {
        **seen,
        "not_deterministic": unwatched,
        "frames": frames,
        "expected": expected,
        "weights_apart": max((abs(a - b) for a, b in zip(weights, plain, strict=True)), default=math.nan),
    }


if __name__ == "__main__":
    json.dump({case: report(case) for case in sys.argv[1:] or CASES}, sys.stdout)
