"""One run: the usual loop with loss scaling, faults, checkpoints, and a restart after every crash."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

import gradmedic as gm
from crash_faults import Fault, Kind, draw, flip_one, set_one
from crash_model import disturbed, held_out_loss, make_bert, masked_loss
from crash_store import Crash, Key, Run
from crash_text import Batch, Text, alike, draw_batch, held_batches, mislabelled
from crash_verdict import WINDOW, LossLevel

LEARNING_RATE, WARMUP = 2e-3, 200
#: Steps between two checkpoints, and how many are kept.
CHECKPOINT_EVERY, KEPT = 200, 4
#: Faults come about a thousand times as often as in life: so that the scale recovers between them, it grows after
#: fewer good steps than torch's 2,000.
GROWTH_INTERVAL = 100


@dataclass(frozen=True)
class Arm:
    """One way of training: the script's own clip (None: it has none), and what watches it (None: nothing does)."""

    name: str
    max_norm: float | None
    transform: Callable[[], Any] | None


@dataclass(frozen=True)
class Checkpoint:
    """All that a restart needs."""

    executed: int
    useful: int
    best: float
    states: dict[str, Any]


class Training:
    """A model in training."""

    def __init__(self, arm: Arm, seed: int, text: Text, stack: ExitStack) -> None:
        self.arm, self.seed, self.text = arm, seed, text
        self.model = make_bert(seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE, fused=True)
        self.scaler = torch.amp.GradScaler("cpu", growth_interval=GROWTH_INTERVAL)
        self.monitor: gm.Monitor | None = None
        if arm.transform is not None:
            transform = arm.transform()
            self.monitor = stack.enter_context(gm.watch(self.model, self.optimizer, transform=transform, every=100))
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.halves = [torch.zeros_like(p, dtype=torch.float16) for p in self.parameters]
        self.level = LossLevel()
        self.executed = self.useful = self.lost = 0
        self.counts: Counter[str] = Counter()
        self.checkpoints = [self._checkpoint()]

    def step(self, fault: Fault | None) -> float:
        """Make one step; return its loss, as a log would show it."""
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (self.useful + 1) / WARMUP)
        kind = None if fault is None else fault.kind
        with disturbed(self.model, fault):
            loss = masked_loss(self.model, self._batch(kind))
        if kind is Kind.LOSS:
            loss = loss * 1000
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._round_gradients(fault)
        self.scaler.unscale_(self.optimizer)
        self._damage_gradients(fault)
        if self.arm.max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.arm.max_norm)
        self.scaler.step(self.optimizer)
        before = self.scaler.get_scale()
        self.scaler.update()
        withheld = self.scaler.get_scale() < before
        self.optimizer.zero_grad()
        self._count(withheld)
        self.executed += 1
        self.useful += 1
        return float(loss.detach())

    def abandon(self) -> None:
        """End a step that a guard has ended the run in: the scaler would refuse to unscale the next one."""
        self.scaler.update()
        self.optimizer.zero_grad()
        self.executed += 1

    def _batch(self, kind: Kind | None) -> Batch:
        number = self.seed * 10_000_000 + self.executed
        batch = draw_batch(self.text.train, number)
        if kind is Kind.TOKENS:
            return alike(batch)
        return mislabelled(batch, number) if kind is Kind.LABELS else batch

    def _gradients(self) -> list[torch.Tensor]:
        return [p.grad for p in self.parameters if p.grad is not None]

    def _round_gradients(self, fault: Fault | None) -> None:
        """Round gradients through fp16: what is too large for it becomes infinite, as where autocast computes them."""
        gradients = self._gradients()
        torch._foreach_copy_(self.halves, gradients)
        if fault is not None and fault.kind is Kind.HALF_GRADIENT:
            flip_one(self.halves, fault)
        torch._foreach_copy_(gradients, self.halves)

    def _damage_gradients(self, fault: Fault | None) -> None:
        """Damage gradients when the scaler has already looked for infinities."""
        if fault is None:
            return
        if fault.kind is Kind.GRADIENT:
            flip_one(self._gradients(), fault)
        elif fault.kind in (Kind.NAN, Kind.INF):
            set_one(self._gradients(), fault, math.nan if fault.kind is Kind.NAN else math.inf)

    def _count(self, withheld: bool) -> None:
        self.counts["withheld"] += withheld
        frame = None if self.monitor is None else self.monitor.latest
        if frame is not None and not withheld:
            self.counts["skipped"] += bool(frame.skipped)
            self.counts["clipped"] += bool(frame.clipped)

    def finite(self) -> bool:
        """Return whether all weights are numbers."""
        return bool(torch.stack([torch.isfinite(p).all() for p in self.parameters]).all())

    def _parts(self) -> dict[str, Any]:
        parts = {"model": self.model, "optimizer": self.optimizer, "scaler": self.scaler}
        return parts if self.monitor is None else {**parts, "monitor": self.monitor}

    def _checkpoint(self) -> Checkpoint:
        states = {name: copy.deepcopy(each.state_dict()) for name, each in self._parts().items()}
        return Checkpoint(self.executed, self.useful, self.level.best, states)

    def save(self) -> None:
        """Keep a checkpoint."""
        self.checkpoints = [*self.checkpoints, self._checkpoint()][-KEPT:]

    def restart(self, onset: int) -> None:
        """Go back to the last checkpoint from before the crash began."""
        while len(self.checkpoints) > 1 and self.checkpoints[-1].executed > onset:
            self.checkpoints.pop()
        last = self.checkpoints[-1]
        for name, each in self._parts().items():
            each.load_state_dict(copy.deepcopy(last.states[name]))
        self.lost += self.useful - last.useful
        self.useful = last.useful
        self.level = LossLevel(last.best)


def train(arm: Arm, seed: int, steps: int, faulty: bool, text: Text, advance: Callable[[], None]) -> Run:
    """Train one arm for so many steps, those that restarts throw away among them."""
    faults = draw(seed, steps) if faulty else {}
    crashes: list[Crash] = []
    cause = ""
    with ExitStack() as stack:
        training = Training(arm, seed, text, stack)
        for at in range(steps):
            fault = faults.get(at)
            cause = cause if fault is None else fault.kind.value
            sign = _sign(training, fault)
            if sign:
                crashes.append(Crash(at, sign, cause))
                training.restart(at - WINDOW if sign == "diverged" else at)
                cause = ""
            elif training.useful % CHECKPOINT_EVERY == 0:
                training.save()
            advance()
        counts = training.counts
        held_out = held_out_loss(training.model, held_batches(text))
    met = Counter(fault.kind.value for fault in faults.values())
    numbers = (counts["withheld"], counts["skipped"], counts["clipped"])
    return Run(Key(arm.name, seed, faulty), steps, tuple(crashes), dict(met), training.lost, held_out, *numbers)


def _sign(training: Training, fault: Fault | None) -> str:
    """Make a step; return how a crash shows, "" where there is none."""
    try:
        loss = training.step(fault)
    except gm.TrainingHalted:
        training.abandon()
        return "halted"
    # Weights can only become non-finite where there was a fault, or where the loss soon tells.
    if (fault is not None or not math.isfinite(loss)) and not training.finite():
        return "weights not finite"
    return "diverged" if training.level.add(loss) else ""
