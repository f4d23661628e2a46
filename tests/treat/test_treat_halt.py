"""Breakers end a run on the step that trips them; what does not fit is refused before a weight has changed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from treat_reference import assert_same, batches, make_model, snapshot, spoiled, train

import gradmedic as gm


def test_halt_raises_and_the_step_is_not_made(tmp_path: Path) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = batches(5)
    with gm.watch(model, optimizer, record=tmp_path / "run", transform=gm.guard.breaker(50.0), strict=True) as monitor:
        train(model, optimizer, data[:3])
        before = snapshot(model, optimizer)
        with pytest.raises(gm.TrainingHalted, match="step 3: grad_norm above 50"):
            train(model, optimizer, [(data[3][0], data[3][1] * 1e4)])
        assert_same(before, snapshot(model, optimizer))
        frame = monitor.latest
        assert frame is not None
        assert frame.step == 3
        assert frame.skipped
        assert (frame.grad_norm or 0) > 50
        run = gm.open_run(tmp_path / "run")
        assert run.steps["step"].to_pylist() == [0, 1, 2, 3]
        assert any(event["kind"] == "halt" and event["step"] == 3 for event in run.events)


def test_a_halted_loop_may_go_on_and_is_still_guarded() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = batches(3)
    with gm.watch(model, optimizer, transform=gm.guard.breaker(50.0), strict=True):
        for _ in range(2):
            with pytest.raises(gm.TrainingHalted):
                train(model, optimizer, [(data[0][0], data[0][1] * 1e4)])
        train(model, optimizer, data)


def test_patience_counts_steps_in_a_row() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    good = batches(1)[0]
    bad = (good[0], good[1] * 1e4)
    with gm.watch(model, optimizer, transform=gm.guard.breaker(50.0, patience=3), strict=True):
        train(model, optimizer, [bad, bad, good, bad, bad])
        with pytest.raises(gm.TrainingHalted, match="for 3 steps in a row"):
            train(model, optimizer, [bad])


def test_too_many_nonfinite_steps_halt() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    bad = spoiled(batches(1)[0])
    with gm.watch(model, optimizer, transform=gm.guard.skip_nonfinite(2), strict=True):
        train(model, optimizer, [bad, bad])
        with pytest.raises(gm.TrainingHalted, match="more than 2 steps in a row"):
            train(model, optimizer, [bad])


def test_a_callback_is_told_and_training_goes_on() -> None:
    told: list[str] = []
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    good = batches(1)[0]
    guard = gm.guard.breaker(50.0, on_trip=told.append)
    with gm.watch(model, optimizer, transform=guard, strict=True):
        before = snapshot(model, optimizer)
        train(model, optimizer, [(good[0], good[1] * 1e4)])
        assert_same(before, snapshot(model, optimizer))
        train(model, optimizer, [good])
    assert len(told) == 1
    assert "grad_norm above 50" in told[0]


def test_stop_ends_the_process_cleanly_with_the_run_closed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    good = batches(1)[0]
    monitor = gm.watch(
        model, optimizer, record=tmp_path / "run", transform=gm.guard.breaker(50.0, on_trip="stop"), strict=True
    )
    train(model, optimizer, [good])
    with pytest.raises(SystemExit) as ended:
        train(model, optimizer, [(good[0], good[1] * 1e4)])
    assert ended.value.code == 0
    assert "stopped at step 1" in capsys.readouterr().err
    run = gm.open_run(tmp_path / "run")
    assert run.steps["step"].to_pylist() == [0, 1]
    assert any(event["kind"] == "end" or "stopped" in str(event) for event in run.events)
    monitor.close()


def test_on_the_device_path_a_breaker_acts_one_step_late_and_the_step_is_skipped_at_once() -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    good = batches(1)[0]
    with gm.watch(model, optimizer, transform=gm.guard.breaker(50.0), backend="torch", strict=True):
        train(model, optimizer, [good])
        before = snapshot(model, optimizer)
        train(model, optimizer, [(good[0], good[1] * 1e4)])
        assert_same(before, snapshot(model, optimizer))
        with pytest.raises(gm.TrainingHalted):
            train(model, optimizer, [good])


def test_lbfgs_is_refused_with_the_reason() -> None:
    model = make_model()
    optimizer = torch.optim.LBFGS(model.parameters())
    with pytest.raises(gm.TransformError, match="closure several times"):
        gm.watch(model, optimizer, transform=gm.clip.norm(1.0))
    with pytest.raises(gm.TransformError, match="closure several times"):
        gm.Clipper(model, 1.0, optimizer=optimizer)
    with gm.watch(model, transform=gm.clip.norm(1.0)):  # found only when it steps
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with pytest.raises(gm.TransformError, match="closure several times"):
            optimizer.step(lambda: (model(batches(1)[0][0]) ** 2).mean())
    assert all(torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True))


def _in_backward(model: torch.nn.Module) -> list[torch.optim.Optimizer]:
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.01) for parameter in model.parameters()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(step)
    return list(optimizers.values())


def test_in_backward_a_joint_norm_is_refused_and_a_norm_by_tensor_works() -> None:
    model = make_model()
    optimizers = _in_backward(model)
    with pytest.raises(gm.TransformError, match="inside backward"):
        gm.watch(model, optimizers, transform=gm.clip.norm(0.1))
    inputs, targets = batches(1)[0]
    with gm.watch(model, transform=gm.clip.norm(0.1), strict=True):
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with pytest.raises(gm.TransformError, match="inside backward"):
            ((model(inputs) - targets) ** 2).mean().backward()
        assert all(torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True))
    model.zero_grad()
    with gm.watch(model, optimizers, transform=gm.clip.norm(0.02, per="tensor"), strict=True) as monitor:
        before = [parameter.detach().clone() for parameter in model.parameters()]
        ((model(inputs) - targets) ** 2).mean().backward()
        moved = [float((one - two.detach()).norm()) for one, two in zip(before, model.parameters(), strict=True)]
        frame = monitor.latest
    assert max(moved) <= 0.01 * 0.02 * (1 + 1e-4)
    assert frame is not None
    assert frame.clipped


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (-1.0, "> 0"),
        (float("nan"), "> 0"),
        ("zclip", "expected a transform"),
        (gm.clip.layers({"nowhere.*": 1.0}), "matches no parameter"),
        (gm.clip.spike_clip(), "second moment"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(transform: object, words: str) -> None:
    model = make_model()
    with pytest.raises(gm.InputError, match=words):
        gm.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), transform=transform)
