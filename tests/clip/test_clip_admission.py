"""Whether a transform fits an optimizer, and true skips."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic.clip import agc, chain, dry_run, layers, norm, spike_clip, value
from gradmedic.clip.admission import admit, admit_in_backward, nested
from gradmedic.clip.late import LateFlags
from gradmedic.clip.withhold import DroppedGradients, FlaggedSkip, honours_found_inf
from gradmedic.host_copies import HostCopies


def optimizers(model: nn.Module) -> dict[str, torch.optim.Optimizer]:
    held = list(model.parameters())
    return {
        "SGD": torch.optim.SGD(held, 0.1, momentum=0.9, weight_decay=0.1),
        "SGD fused": torch.optim.SGD(held, 0.1, momentum=0.9, weight_decay=0.1, fused=True),
        "AdamW": torch.optim.AdamW(held, 0.1, weight_decay=0.1),
        "AdamW fused": torch.optim.AdamW(held, 0.1, weight_decay=0.1, fused=True),
        "Adagrad fused": torch.optim.Adagrad(held, 0.1, fused=True),
    }


def test_lbfgs_is_refused():
    """R31: clipped gradients in its closure would pair losses with gradients that are not theirs."""
    with pytest.raises(gm.TransformError, match="LBFGS"):
        admit(norm(1.0), torch.optim.LBFGS(nn.Linear(1, 1).parameters()))


def test_a_second_moment_is_asked_of_those_that_keep_one():
    model = nn.Linear(2, 2)
    for transform in (
        spike_clip(),
        chain(norm(1.0), spike_clip()),
        layers({"weight": spike_clip()}),
        dry_run(spike_clip()),
    ):
        with pytest.raises(gm.TransformError, match=r"exp_avg_sq.*SGD keeps none"):
            admit(transform, torch.optim.SGD(model.parameters(), 0.1))
        admit(transform, torch.optim.AdamW(model.parameters()))
    admit(norm(1.0), torch.optim.SGD(model.parameters(), 0.1))


def test_optimizers_that_step_inside_backward():
    """R44: a joint norm is impossible there; it is refused, never silently left out."""
    for transform in (norm(1.0), chain(value(1.0), gm.clip.zclip()), layers({"a": 1.0}), gm.guard.skip_nonfinite()):
        with pytest.raises(gm.TransformError, match="all gradients at once"):
            admit_in_backward(transform)
    for transform in (norm(1.0, per="tensor"), agc(), value(1.0), layers({"a": value(1.0)}, default=agc())):
        admit_in_backward(transform)


def test_transforms_inside_transforms():
    inner = layers({"a": value(1.0)}, default=agc())
    whole = chain(dry_run(inner), gm.clip.warmup(norm(0.5), norm(1.0), 5))
    assert [type(each).__name__ for each in nested(whole)] == [
        *("Chain", "DryRun", "Layers", "AGC", "ValueClip", "WarmupTransform", "NormClip", "NormClip")
    ]


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    found = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        state = optimizer.state.get(p, {})
        found += [state[key].clone() for key in sorted(state) if isinstance(state[key], torch.Tensor)]
    return found


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def fill(model: nn.Module, number: float = 1.0) -> None:
    for p in model.parameters():
        p.grad = torch.full_like(p, number)


@pytest.mark.parametrize("name", list(optimizers(nn.Linear(1, 1))))
@pytest.mark.parametrize("number", [1.0, float("nan")])
def test_a_step_whose_gradients_are_dropped_changes_nothing(name, number):
    """Weights, moments, counters and decay; also on the first step, and gradients are back afterwards."""
    model = nn.Linear(3, 2)
    optimizer = optimizers(model)[name]
    for step in range(3):
        if step != 1:
            fill(model, number)
            before, held = snapshot(model, optimizer), [p.grad for p in model.parameters()]
            undo = DroppedGradients(list(model.parameters()))
            optimizer.step()
            undo.put_back()
            assert same(snapshot(model, optimizer), before)
            assert all(p.grad is g for p, g in zip(model.parameters(), held, strict=True))
        fill(model)
        optimizer.step()


def test_gradients_that_are_new_are_not_overwritten():
    model = nn.Linear(1, 1)
    fill(model)
    undo = DroppedGradients(list(model.parameters()))
    fill(model, 2.0)
    undo.put_back()
    assert {p.grad.item() for p in model.parameters()} == {2.0}


@pytest.mark.parametrize("name", ["SGD fused", "AdamW fused", "Adagrad fused"])
def test_a_fused_optimizer_skips_by_itself_once_it_has_its_state(name):
    """Trap 23: the kernels compare with exactly 1. Not on a step that creates state, which they would ruin."""
    model = nn.Linear(3, 2)
    optimizer = optimizers(model)[name]
    fill(model)
    if name == "SGD fused":  # which makes its momentum buffer at the first step, and would leave it as it is
        assert not honours_found_inf(optimizer)
    optimizer.step()
    assert honours_found_inf(optimizer)
    for former in (None, torch.tensor(0.0), torch.tensor(2.0)):
        for skip in (True, False):
            fill(model, float("nan") if skip or former == 2 else 1.0)
            if former is not None:
                optimizer.found_inf = former
            before = snapshot(model, optimizer)
            undo = FlaggedSkip(optimizer, torch.tensor(skip))
            assert optimizer.found_inf.dtype == torch.float32
            assert optimizer.found_inf.item() == float(skip or former == 2)
            optimizer.step()
            undo.put_back()
            assert getattr(optimizer, "found_inf", None) is former
            assert same(snapshot(model, optimizer), before) == (skip or former == 2)
            if former is not None:
                del optimizer.found_inf


def test_a_parameter_that_was_unfrozen_later_has_no_state_yet():
    model = nn.Linear(3, 2)
    optimizer = optimizers(model)["SGD fused"]
    model.weight.grad = torch.ones(2, 3)
    optimizer.step()
    assert honours_found_inf(optimizer)
    model.bias.grad = torch.ones(2)
    assert not honours_found_inf(optimizer)


FIRST_STEPS = {
    "AdamW": lambda held: torch.optim.AdamW(held, 0.1, weight_decay=0.1, fused=True),
    "AdamW amsgrad": lambda held: torch.optim.AdamW(held, 0.1, amsgrad=True, fused=True),
    "Adam": lambda held: torch.optim.Adam(held, 0.1, fused=True),
    "SGD without momentum": lambda held: torch.optim.SGD(held, 0.1, weight_decay=0.1, fused=True),
}


@pytest.mark.parametrize("name", FIRST_STEPS)
def test_a_first_step_that_is_skipped_leaves_what_training_would_begin_with(name):
    """No host needs to know of it: the steps that follow are those of an optimizer that has never seen it."""
    results = []
    for skips in (True, False):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = FIRST_STEPS[name](list(model.parameters()))
        if skips:
            before = [p.detach().clone() for p in model.parameters()]
            fill(model, float("nan"))
            assert honours_found_inf(optimizer)
            undo = FlaggedSkip(optimizer, torch.tensor(True))
            optimizer.step()
            undo.put_back()
            assert all(torch.equal(p, former) for p, former in zip(model.parameters(), before, strict=True))
        for element in (1.0, -0.5, 0.25):
            fill(model, element)
            optimizer.step()
        results.append(snapshot(model, optimizer))
    assert same(*results)


def test_a_subclass_that_may_begin_in_its_own_way_is_not_trusted():
    class Own(torch.optim.AdamW):
        pass

    model = nn.Linear(3, 2)
    fill(model)
    assert not honours_found_inf(Own(list(model.parameters()), 0.1, fused=True))


def test_optimizers_that_do_not_skip_by_themselves():
    model = nn.Linear(3, 2)
    fill(model)
    for name in ("SGD", "AdamW"):
        optimizer = optimizers(model)[name]
        optimizer.step()
        assert not honours_found_inf(optimizer)
    assert not honours_found_inf(object())


@pytest.mark.parametrize("flag", [True, False])
def test_a_flag_on_the_host_is_there_at_once(flag):
    held = torch.tensor(flag)
    late = LateFlags([held, ~held], HostCopies())
    held.logical_not_()
    assert late.read() == [flag, not flag]
