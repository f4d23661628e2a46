"""Faults of our own stay our own: training goes on bit-identically, it is said once, and recorded."""

from __future__ import annotations

import io
import sys

import pytest
import torch

import gradmedic as gm
from gradmedic import torch_hooks
from gradmedic.diagnosis import Engine
from gradmedic.ledger import Ledger
from gradmedic.monitor import Monitor
from gradmedic.probes import preflight
from gradmedic.probes.accumulation import Accumulation
from gradmedic.probes.boundaries import Boundaries
from gradmedic.probes.clip_calls import ClipCalls
from gradmedic.probes.clipping import ClipWatch
from gradmedic.probes.fleet import Fleet
from gradmedic.probes.freshness import Freshness
from gradmedic.probes.gradients import GradientReader
from gradmedic.probes.loss_share import LossShare
from gradmedic.probes.losses import LossMeter
from gradmedic.probes.optimizer import OptimizerProbe
from gradmedic.probes.origin_watch import OriginWatch
from gradmedic.probes.pending import PendingFrame
from gradmedic.probes.preflight import Preflight
from gradmedic.probes.publishing import Publisher
from gradmedic.probes.samples import CoordinateSampler
from gradmedic.probes.stack import StepStack
from gradmedic.probes.treating import Treating
from gradmedic.probes.watch_options import WatchOptions
from gradmedic.probes.watcher import StepWatcher
from gradmedic.roster import Roster
from hooks_training import (
    batches,
    bit_identical,
    cross_entropy,
    mlp,
    module_hooks,
    recorded_norms,
    sgd,
    train,
    weights_of,
)
from hooks_training import (
    single_thread as single_thread,
)

INTERNAL = [
    (Fleet, "find"),
    (WatchOptions, "of_step"),
    (StepWatcher, "_look_at_graph"),
    (LossShare, "begin"),
    (LossShare, "add"),
    (LossShare, "give"),
    (OriginWatch, "before_backward"),
    (Accumulation, "begin"),
    (Accumulation, "settle"),
    (Accumulation, "after_backward"),
    (ClipCalls, "before"),
    (Treating, "treat"),
    (Boundaries, "finish"),
    (Publisher, "publish"),
    (Publisher, "_update_facts"),
    (OptimizerProbe, "parameters"),
    (OptimizerProbe, "begin"),
    (OptimizerProbe, "read_again"),
    (OptimizerProbe, "finish"),
    (OptimizerProbe, "by_size"),
    (CoordinateSampler, "read"),
    (CoordinateSampler, "compare"),
    (CoordinateSampler, "cosine"),
    (GradientReader, "take"),
    (GradientReader, "measure"),
    (GradientReader, "before_clip"),
    (GradientReader, "after_clip"),
    (ClipWatch, "classify"),
    (ClipWatch, "after_backward"),
    (ClipWatch, "stepped"),
    (Freshness, "before_backward"),
    (Freshness, "after_backward"),
    (Freshness, "stepped"),
    (LossMeter, "add"),
    (LossMeter, "restart"),
    (preflight, "sample_inputs"),
    (Preflight, "on_backward"),
    (Preflight, "look_at_unreached"),
    (Preflight, "collect"),
    (Preflight, "stepped"),
    (StepStack, "begin"),
    (StepStack, "end"),
    (Roster, "lookup"),
    (Roster, "refresh"),
    (PendingFrame, "pack"),
    (Monitor, "_pending"),
    (Ledger, "resolve"),
    (Ledger, "_resolved"),
    (Ledger, "_judge"),
    (Ledger, "_found"),
    (Monitor, "_event"),
    (Engine, "on_frame"),
    (Engine, "finish"),
]


def clipped_training(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for x, y in batches(steps):
        optimizer.zero_grad()
        cross_entropy(model, x, y).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


class Broken(Exception):
    """The fault that is injected."""


def broken(*_args, **_kwargs):
    raise Broken("injected")


@pytest.mark.parametrize(("owner", "method"), INTERNAL, ids=lambda value: getattr(value, "__name__", value))
def test_a_fault_of_ours_never_reaches_training(owner, method, monkeypatch, capfd):
    """R78: each internal part is made to fail: training goes on bit-identically, and it is said in one line a part."""
    plain, watched = mlp(), mlp()
    clipped_training(plain, sgd(plain), 6)
    optimizer = sgd(watched)
    monitor = gm.watch(watched, optimizer, limits=1e-9)
    hits: list[int] = []

    def counted(*_args, **_kwargs):
        hits.append(1)
        raise Broken("injected")

    monkeypatch.setattr(owner, method, counted)
    clipped_training(watched, optimizer, 6)
    monitor.close()
    monkeypatch.undo()
    assert hits
    assert bit_identical(weights_of(plain), weights_of(watched))
    said = [line for line in capfd.readouterr().err.splitlines() if "injected" in line]
    parts = {line.split("'")[1] for line in said}
    assert len(said) == len(parts)
    assert parts == monitor.isolation.off
    errors = [event for event in monitor.run.events if event["kind"] == "error"]
    assert {event["part"] for event in errors} == parts
    assert all("Broken: injected" in event["message"] for event in errors)
    assert torch_hooks.attached() == ()
    assert module_hooks(watched) == 0


@pytest.mark.parametrize(
    ("owner", "method"),
    [(OptimizerProbe, "begin"), (OptimizerProbe, "finish"), (LossMeter, "add"), (Ledger, "_resolved")],
)
def test_strict_mode_raises(owner, method, monkeypatch):
    """R78: strict mode is for debugging, there our own error is raised."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True):
        monkeypatch.setattr(owner, method, broken)
        with pytest.raises(Broken):
            clipped_training(model, optimizer, 1)
        monkeypatch.undo()


def test_only_the_faulty_part_is_off(monkeypatch):
    """R78: with the graph walk broken, norms and losses are recorded as before."""
    model = mlp()
    optimizer = sgd(model)
    monkeypatch.setattr(Preflight, "on_backward", broken)
    with gm.watch(model, optimizer) as monitor:
        losses, norms = train(model, optimizer, batches(4))
    assert monitor.isolation.off == {"graph walk"}
    assert monitor.run.series("loss").tolist() == pytest.approx(losses)
    assert [pytest.approx(row) for row in recorded_norms(monitor.run)] == norms


class Sink:
    def __init__(self, fails: str = "") -> None:
        self.fails, self.calls = fails, []

    def _do(self, what: str) -> None:
        self.calls.append(what)
        if what == self.fails:
            raise OSError("no route to host")

    def emit(self, frame):
        self._do("emit")

    def emit_finding(self, finding):
        self._do("emit_finding")

    def close(self):
        self._do("close")


@pytest.mark.parametrize("fails", ["emit", "emit_finding", "close"])
def test_a_sink_that_fails_is_switched_off_alone(fails, capfd):
    """R58: a failing sink does not stop training, nor another sink of its class, and is still closed."""
    plain, model = mlp(), mlp()
    train(plain, sgd(plain), batches(5))
    optimizer = sgd(model)
    bad, good = Sink(fails), Sink()
    with gm.watch(model, optimizer, sinks=[bad, good], limits=1e-9) as monitor:
        train(model, optimizer, batches(5))
    assert bit_identical(weights_of(plain), weights_of(model))
    assert good.calls.count("emit") == 5
    assert bad.calls.count(fails) == 1
    assert (good.calls[-1], bad.calls[-1]) == ("close", "close")
    assert len([line for line in capfd.readouterr().err.splitlines() if "no route to host" in line]) == 1
    assert monitor.run.steps.num_rows == 5


def test_a_callback_that_fails_is_switched_off(capfd):
    """R78: an on_finding callback that raises is said once, and watching goes on."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, limits=1e-9, on_finding=broken) as monitor:
        train(model, optimizer, batches(5))
    assert monitor.isolation.off == {"on_finding"}
    assert capfd.readouterr().err.count("injected") == 1
    assert monitor.run.steps.num_rows == 5


def test_a_schedule_that_fails_stays_ours():
    """R78: a callable `every` that raises does not reach the training loop."""
    plain, model = mlp(), mlp()
    train(plain, sgd(plain), batches(5))
    optimizer = sgd(model)
    with gm.watch(model, optimizer, every=broken) as monitor:
        train(model, optimizer, batches(5))
    assert bit_identical(weights_of(plain), weights_of(model))
    assert any("injected" in event.get("message", "") for event in monitor.run.events)


class BrokenRule:
    code, name, kind, needs = "GM999", "broken", "symptom", frozenset()

    def evaluate(self, view):
        raise Broken("injected")


def test_a_rule_that_fails_is_recorded():
    """R78: a rule that raises is switched off, the record says so, the other rules go on; strict mode raises."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, rules=[BrokenRule(), "GM412"], limits=1e-9) as monitor:
        train(model, optimizer, batches(4))
    errors = [event for event in monitor.run.events if event["kind"] == "error"]
    assert len(errors) == 1
    assert "GM999" in errors[0]["message"]
    assert [finding.code for finding in monitor.findings] == ["GM412"]
    with pytest.raises(Broken), gm.watch(model, optimizer, rules=[BrokenRule()], strict=True):
        train(model, optimizer, batches(1))


@pytest.mark.parametrize("stream", ["closed", "none", "broken"])
def test_a_dead_stderr_harms_nothing(stream, monkeypatch):
    """R78: reporting a fault to a stderr that is closed, missing or broken is given up silently."""
    plain, model = mlp(), mlp()
    clipped_training(plain, sgd(plain), 4)
    dead = io.StringIO()
    dead.close()

    class Pipe(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", {"closed": dead, "none": None, "broken": Pipe()}[stream])
    monkeypatch.setattr(LossMeter, "add", broken)
    optimizer = sgd(model)
    with gm.watch(model, optimizer) as monitor:
        clipped_training(model, optimizer, 4)
    assert bit_identical(weights_of(plain), weights_of(model))
    assert [event["part"] for event in monitor.run.events if event["kind"] == "error"] == ["loss"]


def test_inputs_of_any_kind_pass_the_input_hook():
    """R78: None, text, integer, boolean, complex, empty, sparse and nested inputs pass through the input look."""

    class Anything(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x, *rest, **named):
            return self.layer(x["deep"][0])

    model = Anything()
    optimizer = sgd(model)
    x = torch.ones(3, 2)
    odd = [None, "text", torch.arange(3), torch.tensor([True]), torch.ones(2, dtype=torch.complex64), torch.empty(0)]
    with gm.watch(model, optimizer, strict=True) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            model({"deep": [x, object()]}, *odd, mask=torch.eye(3).to_sparse(), other=None).sum().backward()
            optimizer.step()
    facts = [event["facts"] for event in monitor.run.events if event["kind"] == "facts"][-1]
    seen = {(entry["name"], entry["dtype"]) for entry in facts["inputs"]}
    assert seen == {("input0.deep.0", "float32"), ("input3", "int64"), ("input4", "bool")}
