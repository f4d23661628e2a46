"""Loss scaling: numbers in true units, steps that the scaler withholds, and scales that change in between."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from core_reference import batch, codes, frames, grad_norm, net, watch
from torch import nn

import gradmedic as gm

pytestmark = pytest.mark.filterwarnings("error")

mse = nn.functional.mse_loss
WITHHELD = "non-finite gradients under the loss scale"


def make(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    name, _, fused = kind.partition(" ")
    return getattr(torch.optim, name)(model.parameters(), lr=0.01, fused=bool(fused) or None)


def plain_run(kind: str, steps: int = 4) -> list[tuple[float, float, dict[str, float]]]:
    model = net()
    optimizer = make(kind, model)
    with watch(model, optimizer) as monitor:
        for step in range(steps):
            optimizer.zero_grad()
            mse(model(batch(step)[0]), batch(step)[1]).backward()
            optimizer.step()
        return [summary(frame) for frame in frames(monitor)]


def summary(frame: gm.Frame) -> tuple[float, float, dict[str, float]]:
    return frame.loss, frame.grad_norm, {name: row.max_abs for name, row in frame.tensors.items()}


@pytest.mark.parametrize("unscale", [False, True])
@pytest.mark.parametrize("kind", ["AdamW", "AdamW fused", "SGD", "SGD fused", "Adagrad fused"])
def test_numbers_under_a_loss_scale_are_those_of_the_run_without(kind, unscale):
    """R2: gradients and losses in true units, divided once, with and without an explicit unscale_, fused or not."""
    model = net()
    optimizer = make(kind, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024)
    with watch(model, optimizer) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(mse(model(batch(step)[0]), batch(step)[1])).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        found = frames(monitor)
    for frame, (loss, size, largest) in zip(found, plain_run(kind), strict=True):
        assert frame.loss == pytest.approx(loss, rel=1e-5)
        assert frame.grad_norm == pytest.approx(size, rel=1e-5)
        assert frame.grad_norm_post == pytest.approx(size, rel=1e-5)
        assert {name: row.max_abs for name, row in frame.tensors.items()} == pytest.approx(largest, rel=1e-5)
        assert frame.loss_scale == 1024
        assert not frame.skipped


@pytest.mark.parametrize("kind", ["AdamW", "AdamW fused"])
def test_accumulated_losses_are_each_divided_by_their_scale(kind):
    """R2: scaled losses of several micro-batches, divided by their number before or after scaling."""
    model = net()
    optimizer = make(kind, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=512)
    with watch(model, optimizer) as monitor:
        first = mse(model(batch(0)[0]), batch(0)[1]) / 2
        scaler.scale(first).backward()
        second = mse(model(batch(1)[0]), batch(1)[1])
        (scaler.scale(second) / 2).backward()
        expected = first.item() + second.item() / 2
        size = grad_norm(model) / 512
        scaler.step(optimizer)
        scaler.update()
    assert monitor.latest.loss == pytest.approx(expected, rel=1e-6)
    assert monitor.latest.grad_norm == pytest.approx(size, rel=1e-6)
    assert monitor.latest.micro_batches == 2


@pytest.mark.parametrize("kind", ["SGD", "SGD fused", "AdamW", "AdamW fused"])
@pytest.mark.parametrize("watched", ["the optimizer", "whichever steps"])
def test_a_skipped_step_is_recorded_as_skipped_and_only_that(kind, watched):
    """R3, R72: exactly the steps that the scaler withheld are skipped, twice in a row too; each has a whole frame."""
    model = net()
    optimizer = make(kind, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=64, growth_interval=2)
    bad = {1, 3, 4}
    scales, same = [], []
    with watch(model, optimizer if watched == "the optimizer" else None) as monitor:
        for step in range(8):
            optimizer.zero_grad()
            factor = float("inf") if step in bad else 1.0
            scales.append(scaler.get_scale())
            scaler.scale(mse(model(batch(step)[0]), batch(step)[1]) * factor).backward()
            before = [p.detach().clone() for p in model.parameters()]
            scaler.step(optimizer)
            scaler.update()
            same.append(all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)))
            assert monitor.latest.step == step
        found = frames(monitor)
    assert len(set(scales)) > 2, "the scale has both halved and grown"
    assert [frame.step for frame in found] == list(range(8))
    assert {frame.step for frame in found if frame.skipped} == bad == {step for step in range(8) if same[step]}
    assert [frame.loss_scale for frame in found] == scales
    assert [frame.skip_reason for frame in found] == [WITHHELD if step in bad else None for step in range(8)]
    for frame in found:
        assert (frame.nonfinite > 0) == (frame.step in bad)
        assert len(frame.tensors) == 4
        if frame.skipped:
            assert {row.update_norm for row in frame.tensors.values()} == {0.0}
            assert {row.unchanged_frac for row in frame.tensors.values()} == {1.0}


@pytest.mark.parametrize("kind", ["AdamW", "AdamW fused"])
def test_a_frame_of_a_skipped_step_passes_through_every_consumer(kind, tmp_path):
    """R72: sinks, the record on disk and the diagnosis take a step whose norm is not finite."""
    model = net()
    optimizer = make(kind, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=64)
    sink = Sink()
    with watch(model, optimizer, record=tmp_path / "run", sinks=[sink]) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            factor = float("nan") if step == 1 else 1.0
            scaler.scale(mse(model(batch(step)[0]), batch(step)[1]) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        monitor.diagnose()
    run = gm.open_run(tmp_path / "run")
    assert sink.steps == [0, 1, 2]
    assert [frame.skipped for frame in run.frames()] == [False, True, False]
    assert run.series("grad_norm").shape == (3,)
    gm.diagnose(run)


class Sink:
    def __init__(self) -> None:
        self.steps: list[int] = []

    def emit(self, frame: gm.Frame) -> None:
        self.steps.append(frame.step)

    def emit_finding(self, finding: Any) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("overflow", ["in the backward pass", "in the scaled loss"])
@pytest.mark.parametrize("kind", ["AdamW", "AdamW fused"])
def test_overflows_while_the_scale_calibrates_are_no_fault(kind, overflow):
    """R37: the first steps under a far too high scale are the scaler's calibration: info, no origin, no alarm."""
    model = net()
    optimizer = make(kind, model)
    half = overflow == "in the backward pass"
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24 if half else 2.0**127)
    with watch(model, optimizer) as monitor:
        for _ in range(40):
            optimizer.zero_grad()
            x, y = batch(0)
            with torch.autocast("cpu", dtype=torch.float16, enabled=half):
                loss = 50 * mse(model(x).float(), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        found = frames(monitor)
        findings = monitor.diagnose()
        origins = [event for event in monitor.run.events if event["kind"] == "origin"]
    skipped = [frame.step for frame in found if frame.skipped]
    assert len(skipped) >= 3
    assert skipped == list(range(len(skipped)))
    assert all(math.isfinite(frame.loss) for frame in found)
    assert [finding.code for finding in findings if finding.severity != "info"] == []
    assert "GM204" in [finding.code for finding in findings]
    assert origins == []


def test_skips_that_never_end_are_a_fault():
    """R37: the alarm comes when skips continue although the scale has come down."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    with watch(model, optimizer) as monitor:
        for step in range(40):
            optimizer.zero_grad()
            factor = float("inf") if step >= 10 else 1.0
            scaler.scale(mse(model(batch(step)[0]), batch(step)[1]) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
        assert any(finding.severity in ("error", "critical") for finding in monitor.diagnose())


@pytest.mark.parametrize("fused", [False, True])
def test_pure_fp16_is_watched_and_the_users_error_is_unchanged(fused):
    """R70: unscale refuses fp16 gradients with its own ValueError; without unscaling every step is watched."""
    unwatched, watched = (catch_unscale(attach) for attach in (False, True))
    assert unwatched == watched
    assert unwatched[0] is ValueError

    model = net(dtype=torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, fused=fused)
    with watch(model, optimizer) as monitor:
        expected = []
        for step in range(3):
            optimizer.zero_grad()
            x, y = batch(step, dtype=torch.float16)
            mse(model(x), y).backward()
            expected.append(grad_norm(model))
            optimizer.step()
        assert [frame.grad_norm for frame in frames(monitor)] == pytest.approx(expected, rel=1e-5)


def catch_unscale(attach: bool) -> tuple[type[BaseException], str]:
    model = net(dtype=torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=8)
    monitor = watch(model, optimizer) if attach else None
    x, y = batch(0, dtype=torch.float16)
    scaler.scale(mse(model(x), y)).backward()
    try:
        scaler.step(optimizer)
    except Exception as error:
        return type(error), str(error)
    finally:
        if monitor is not None:
            monitor.close()
    raise AssertionError("torch refuses to unscale fp16 gradients")


@pytest.mark.parametrize("kind", ["AdamW", "AdamW fused"])
@pytest.mark.parametrize("unscale", [False, True])
def test_the_scale_is_the_one_of_the_backward_pass(kind, unscale):
    """R71: with a growth interval of 1 the scale doubles every step; norms and losses never show twice the scale."""
    model = net()
    optimizer = make(kind, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=16, growth_interval=1)
    scales = []
    with watch(model, optimizer) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
            scaler.scale(mse(model(batch(step)[0]), batch(step)[1])).backward()
            if unscale:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        found = frames(monitor)
    assert scales == [16, 32, 64, 128]
    assert [frame.loss_scale for frame in found] == scales
    for frame, (loss, size, _) in zip(found, plain_run(kind), strict=True):
        assert (frame.loss, frame.grad_norm) == pytest.approx((loss, size), rel=1e-5)


def test_the_loss_read_at_the_end_of_a_backlog_has_its_own_scale():
    """R71: frames that are read late (device path) do not see the scale of a later step."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=16, growth_interval=1)
    with watch(model, optimizer, backend="torch", every=1000) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(mse(model(batch(step)[0]), batch(step)[1])).backward()
            scaler.step(optimizer)
            scaler.update()
        found = frames(monitor)
    assert [frame.loss_scale for frame in found] == [16, 32, 64, 128]
    assert [f.loss for f in found] == pytest.approx([loss for loss, _, _ in plain_run("AdamW")], rel=1e-5)


@pytest.mark.parametrize("kind", ["AdamW", "AdamW fused"])
def test_two_optimizers_under_one_scaler_are_skipped_each_for_itself(kind):
    """R3: an overflow in one optimizer's gradients skips that one; the other steps."""
    models = {"a": net(1), "b": net(2)}
    optimizers = {name: make(kind, model) for name, model in models.items()}
    scaler = torch.amp.GradScaler("cpu", init_scale=64)
    with watch(models, optimizers) as monitor:
        for step in range(2):
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            x, y = batch(step)
            factor = float("inf") if step == 1 else 1.0
            scaler.scale(mse(models["a"](x), y) + mse(models["b"](x), y) * factor).backward()
            for optimizer in optimizers.values():
                scaler.step(optimizer)
            scaler.update()
        found = {(frame.optimizer, frame.step): frame for frame in frames(monitor)}
    assert {key for key, frame in found.items() if frame.skipped} == {("b", 1)}
    assert {frame.loss_scale for frame in found.values()} == {64}


def test_a_disabled_scaler_is_no_scaler():
    """R2: with enabled=False everything is as without it, and no scale is recorded."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with watch(model, optimizer) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            scaler.scale(mse(model(batch(step)[0]), batch(step)[1])).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        found = frames(monitor)
        assert "GM204" not in codes(monitor)
    assert {frame.loss_scale for frame in found} == {None}
    for frame, (loss, size, _) in zip(found, plain_run("AdamW"), strict=True):
        assert (frame.loss, frame.grad_norm) == pytest.approx((loss, size), rel=1e-6)


@pytest.mark.parametrize("kind", ["AdamW", "AdamW fused"])
def test_autocast_to_bf16_shows_the_gradients_of_the_weights(kind):
    """R2: under autocast with a scaler, norms are those of the fp32 gradients that the optimizer uses."""
    model = net()
    optimizer = make(kind, model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256)
    with watch(model, optimizer) as monitor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse(model(batch(0)[0]).float(), batch(0)[1])
        scaler.scale(loss).backward()
        expected = grad_norm(model) / 256
        scaler.step(optimizer)
    assert monitor.latest.grad_norm == pytest.approx(expected, rel=1e-6)
    assert monitor.latest.loss == pytest.approx(loss.item(), rel=1e-6)
