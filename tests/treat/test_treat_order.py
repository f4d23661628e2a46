"""Where a transform acts: before the script's own clip, once a step, on all gradients; and what the record says."""

from __future__ import annotations

import math

import pytest
import torch
from treat_reference import batches, make_model, spoiled, train

import gradmedic as gm


def _norm(model: torch.nn.Module) -> float:
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None))


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("theirs", [0.02, 0.5])
def test_ours_comes_first_and_both_are_recorded(theirs: float, backend: str) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    seen: list[tuple[float, float]] = []

    def clip() -> None:
        before = float(torch.nn.utils.clip_grad_norm_(model.parameters(), theirs))
        seen.append((before, _norm(model)))

    with gm.watch(model, optimizer, transform=gm.clip.norm(0.1), backend=backend, strict=True) as monitor:
        for batch in batches(4):
            optimizer.zero_grad()
            ((model(batch[0]) - batch[1]) ** 2).mean().backward()
            raw = _norm(model)
            clip()
            optimizer.step()
            frame = monitor.latest
            assert frame is not None
            assert frame.grad_norm_post is not None
            assert frame.transform_scale is not None
            assert raw > 0.1
            assert frame.grad_norm == pytest.approx(raw, rel=1e-6)
            assert frame.transform_scale == pytest.approx(0.1 / raw, rel=1e-4)
            assert frame.transform_threshold == 0.1
            assert seen[-1][0] == pytest.approx(0.1, rel=1e-4)  # their clip measures what ours has left
            assert frame.grad_norm_post == pytest.approx(seen[-1][1], rel=1e-4)
            assert frame.clip_threshold == theirs


def test_clip_of_some_parameters_finds_all_gradients_treated() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    last = model[4]

    def clip() -> None:
        torch.nn.utils.clip_grad_norm_(last.parameters(), 1e-3)

    with gm.watch(model, optimizer, transform=gm.clip.norm(0.1), strict=True) as monitor:
        train(model, optimizer, batches(1), before_step=clip)
        frame = monitor.latest
    assert frame is not None
    assert frame.grad_norm_post is not None
    assert frame.grad_norm_post == pytest.approx(_norm(model), rel=1e-5)
    assert frame.transform_scale == pytest.approx(0.1 / float(frame.grad_norm or 0), rel=1e-5)


def test_clip_between_micro_batches_does_not_count_a_step_twice() -> None:
    """The script clips after every micro-batch (which is wrong): our history still has one norm a step."""
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = batches(6)
    with gm.watch(model, optimizer, transform=gm.clip.norm(gm.clip.median(1.5, 8)), strict=True) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            for inputs, targets in data[2 * step : 2 * step + 2]:
                ((model(inputs) - targets) ** 2).mean().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            optimizer.step()
        saved = monitor.state_dict()["transform"]["optimizer"]
    assert int(saved["parts"]["threshold"]["shared"]["count"]) == 3


def test_erased_gradients_leave_no_trace_in_the_history() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = batches(3)
    with gm.watch(model, optimizer, transform=gm.clip.norm(gm.clip.median(1.5, 8)), strict=True) as monitor:
        for at, (inputs, targets) in enumerate(data):
            ((model(inputs) - targets) ** 2).mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 100.0)
            if at != 1:
                optimizer.step()
            optimizer.zero_grad()
        saved = monitor.state_dict()["transform"]["optimizer"]
    assert int(saved["parts"]["threshold"]["shared"]["count"]) == 2


def test_element_wise_clips_are_measured_not_guessed() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, transform=gm.clip.value(0.01), strict=True) as monitor:
        for batch in batches(3):
            train(model, optimizer, [batch])
            frame = monitor.latest
            assert frame is not None
            assert frame.clipped
            assert frame.grad_norm_post == pytest.approx(_norm(model), rel=1e-6)
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                assert float(parameter.grad.abs().max()) <= 0.01
                row = frame.tensors[name]
                assert row.norm * row.clip_scale == pytest.approx(float(parameter.grad.norm()), rel=1e-5)


def test_a_treated_run_is_the_run_clipped_by_hand() -> None:
    data = batches(20)
    ours = make_model()
    optimizer = torch.optim.AdamW(ours.parameters(), lr=0.01)
    with gm.watch(ours, optimizer, transform=gm.clip.norm(0.3), strict=True):
        train(ours, optimizer, data)
    theirs = make_model()
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01)
    train(theirs, reference, data, before_step=lambda: torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.3))
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


def test_below_the_threshold_training_is_bit_identical() -> None:
    data = batches(20)
    weights = []
    for transform in (None, gm.clip.norm(1e6), gm.clip.chain(gm.guard.default(gm.clip.norm(math.inf)))):
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with gm.watch(model, optimizer, transform=transform, strict=True):
            train(model, optimizer, data)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
    for others in weights[1:]:
        assert all(torch.equal(one, two) for one, two in zip(weights[0], others, strict=True))


def test_several_optimizers_have_a_state_each() -> None:
    first, second = make_model(0), make_model(1)
    optimizers = {
        "first": torch.optim.SGD(first.parameters(), lr=0.01),
        "second": torch.optim.SGD(second.parameters(), lr=0.01),
    }
    watched = {"a": first, "b": second}
    transform = gm.clip.norm(gm.clip.median(1.5, 8))
    with gm.watch(watched, optimizers, transform=transform, strict=True) as monitor:
        train(first, optimizers["first"], batches(4))
        train(second, optimizers["second"], batches(2))
        saved = monitor.state_dict()["transform"]
    counts = {name: int(state["parts"]["threshold"]["shared"]["count"]) for name, state in saved.items()}
    assert counts == {"first": 4, "second": 2}


@pytest.mark.parametrize("stop", [1, 5, 9])
def test_resume_gives_the_identical_continuation(stop: int) -> None:
    data = batches(14)
    data[4] = spoiled(data[4])
    data[11] = (data[11][0] * 50, data[11][1])

    def transform() -> object:
        return gm.guard.default(gm.clip.chain(gm.clip.zclip(warmup=4), gm.clip.adagc(warmup=3)))

    whole = make_model()
    optimizer = torch.optim.AdamW(whole.parameters(), lr=0.01)
    with gm.watch(whole, optimizer, transform=transform(), strict=True) as monitor:
        train(whole, optimizer, data)
        end = monitor.state_dict()
    parted = make_model()
    optimizer = torch.optim.AdamW(parted.parameters(), lr=0.01)
    with gm.watch(parted, optimizer, transform=transform(), strict=True) as monitor:
        train(parted, optimizer, data[:stop])
        saved = monitor.state_dict()
    with gm.watch(parted, optimizer, transform=transform(), strict=True) as monitor:
        monitor.load_state_dict(saved)
        train(parted, optimizer, data[stop:])
        again = monitor.state_dict()
    assert all(torch.equal(one, two) for one, two in zip(whole.parameters(), parted.parameters(), strict=True))
    assert again["optimizers"] == end["optimizers"]


def test_state_survives_torch_save_with_weights_only(tmp_path) -> None:  # type: ignore[no-untyped-def]
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, transform=gm.guard.default(), strict=True) as monitor:
        train(model, optimizer, batches(3))
        torch.save(monitor.state_dict(), tmp_path / "state.pt")
        monitor.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
        train(model, optimizer, batches(1))


def test_another_transforms_state_is_refused() -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, transform=gm.clip.zclip(), strict=True) as monitor:
        train(model, optimizer, batches(1))
        saved = monitor.state_dict()
    with gm.watch(model, optimizer, transform=gm.clip.adagc(), strict=True) as monitor:
        train(model, optimizer, batches(1))
        with pytest.raises(gm.InputError, match="state of this transform"):
            monitor.load_state_dict(saved)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("damage", [math.nan, 1e15])
def test_what_changes_gradients_after_the_scripts_clip_is_decided_about_anew(damage: float, fused: bool) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    data = batches(4)
    transform = gm.clip.chain(gm.guard.skip_nonfinite(), gm.clip.norm(0.1))

    def clip_and_damage() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grad = next(iter(model.parameters())).grad
        assert grad is not None
        with torch.no_grad():
            grad[0, 0] = damage

    with gm.watch(model, optimizer, transform=transform, strict=True) as monitor:
        train(model, optimizer, data[:2])
        before = [parameter.detach().clone() for parameter in model.parameters()]
        train(model, optimizer, data[2:3], before_step=clip_and_damage)
        frame = monitor.latest
        assert frame is not None
        if math.isnan(damage):
            assert frame.skipped
            assert all(torch.equal(one, two) for one, two in zip(before, model.parameters(), strict=True))
        else:
            assert _norm(model) == pytest.approx(0.1, rel=1e-5)
        train(model, optimizer, data[3:])
        assert monitor.latest is not None
        assert not monitor.latest.skipped
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def test_a_halt_in_the_scripts_clip_is_over_once_a_checkpoint_is_loaded() -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    good, bad = batches(1)[0], spoiled(batches(1)[0])

    def clip() -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    with gm.watch(model, optimizer, transform=gm.guard.skip_nonfinite(1), strict=True) as monitor:
        train(model, optimizer, [good, good], before_step=clip)
        saved = monitor.state_dict()
        train(model, optimizer, [bad], before_step=clip)
        with pytest.raises(gm.TrainingHalted):
            train(model, optimizer, [bad], before_step=clip)
        monitor.load_state_dict(saved)
        train(model, optimizer, [good], before_step=clip)
        assert monitor.latest is not None
        assert not monitor.latest.skipped
