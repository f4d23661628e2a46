"""`gm.Clipper`: transforms called by hand."""

from __future__ import annotations

import math

import pytest
import torch
from treat_reference import assert_same, batches, make_model, snapshot, spoiled

import gradmedic as gm


def _loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    loss: torch.Tensor = ((model(batch[0]) - batch[1]) ** 2).mean()
    return loss


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_it_clips_as_torch_does(backend: str) -> None:
    ours, theirs = make_model(), make_model()
    first, second = (torch.optim.AdamW(m.parameters(), lr=0.01) for m in (ours, theirs))
    clipper = gm.Clipper(ours, gm.clip.norm(0.2), backend=backend)
    for batch in batches(10):
        for model, optimizer in ((ours, first), (theirs, second)):
            optimizer.zero_grad()
            _loss(model, batch).backward()
        expected = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.2)
        frame = clipper.step()
        assert frame.grad_norm == pytest.approx(float(expected), rel=1e-6)
        assert frame.clipped == (float(expected) > 0.2)
        first.step()
        second.step()
    for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("given", [False, True])
def test_a_skip_is_a_true_skip_with_and_without_the_optimizer(given: bool, backend: str, fused: bool) -> None:
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused, weight_decay=0.1)
    clipper = gm.Clipper(model, gm.guard.skip_nonfinite(), optimizer=optimizer if given else None, backend=backend)
    data = batches(6)
    for at, batch in enumerate(data):
        optimizer.zero_grad()
        _loss(model, spoiled(batch) if at in (0, 3) else batch).backward()
        before = snapshot(model, optimizer)
        frame = clipper.step()
        optimizer.step()
        assert frame.skipped == (at in (0, 3))
        assert not hasattr(optimizer, "found_inf")
        if frame.skipped:
            assert_same(before, snapshot(model, optimizer))
        else:
            assert not torch.equal(before[0]["0.weight"], model.state_dict()["0.weight"])


def test_state_resumes_at_any_step() -> None:
    data = batches(12)
    model = make_model()
    gradients = []
    for batch in data:
        model.zero_grad()
        _loss(model, batch).backward()
        gradients.append([p.grad.clone() for p in model.parameters() if p.grad is not None])

    def play(clipper: gm.Clipper, part: list[list[torch.Tensor]]) -> list[float]:
        scales = []
        for entry in part:
            for parameter, gradient in zip(model.parameters(), entry, strict=True):
                parameter.grad = gradient.clone()
            scales.append(clipper.step().clip_scale)
        return scales

    def make() -> gm.Clipper:
        return gm.Clipper(model, gm.clip.chain(gm.clip.median_clip(0.9, 6, min_samples=2), gm.clip.adagc(warmup=3)))

    whole = play(make(), gradients)
    for stop in range(len(data)):
        first = make()
        begun = play(first, gradients[:stop])
        second = make()
        second.load_state_dict(first.state_dict())
        assert begun + play(second, gradients[stop:]) == whole


def test_the_loss_is_for_guards_that_watch_it() -> None:
    model = make_model()
    guard = gm.guard.skip_spikes("loss", min_samples=5, window=20)
    clipper = gm.Clipper(model, guard)
    for at, batch in enumerate(batches(12)):
        model.zero_grad()
        loss = _loss(model, batch)
        loss.backward()
        frame = clipper.step(loss * 1e4 if at == 10 else loss)
        assert frame.skipped == (at == 10)
        assert frame.loss == pytest.approx(float(loss.detach()) * (1e4 if at == 10 else 1), rel=1e-6)


def test_parameters_without_a_model_and_a_number_for_a_transform() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, 4.0])
    for given in (weight, [weight], iter([weight]), {"w": weight}.values()):
        weight.grad = torch.tensor([3.0, 4.0])
        frame = gm.Clipper(given, 1.0).step()
        assert frame.grad_norm == 5.0
        assert float(weight.grad.norm()) == pytest.approx(1.0, rel=1e-6)


def test_a_halt_leaves_the_gradients_as_they_were() -> None:
    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([3.0, math.nan])
    clipper = gm.Clipper([weight], gm.guard.breaker(1.0))
    with pytest.raises(gm.TrainingHalted, match="step 0"):
        clipper.step()
    assert weight.grad is not None
    assert float(weight.grad[0]) == 3.0


@pytest.mark.parametrize(
    ("given", "transform", "optimizer", "words"),
    [
        (3, 1.0, None, "expected a torch.nn.Module or its parameters"),
        ([], 1.0, None, "expected a torch.nn.Module or its parameters"),
        (torch.nn.Linear(2, 1), "zclip", None, "expected a transform"),
        (torch.nn.Linear(2, 1), -1, None, "> 0"),
        (torch.nn.Linear(2, 1).requires_grad_(False), 1.0, None, "none of the parameters requires a gradient"),
        (torch.nn.Linear(2, 1), gm.clip.spike_clip(), None, "pass optimizer="),
        (torch.nn.Linear(2, 1), gm.clip.layers({"encoder": 1.0}), None, "matches no parameter"),
    ],
)
def test_bad_input_is_a_clear_sentence(given: object, transform: object, optimizer: object, words: str) -> None:
    with pytest.raises(gm.InputError, match=words):
        gm.Clipper(given, transform, optimizer=optimizer)  # type: ignore[arg-type]


def test_another_state_is_refused() -> None:
    clipper = gm.Clipper(make_model(), gm.clip.zclip())
    with pytest.raises(gm.InputError, match="expected what Clipper"):
        clipper.load_state_dict({"version": 2})


def test_layers_without_gradients_this_step_are_passed_over() -> None:
    model = make_model()
    clipper = gm.Clipper(model, gm.clip.adagc(warmup=2))
    for at, batch in enumerate(batches(6)):
        model.zero_grad()
        _loss(model, batch).backward()
        if at % 2:
            model[0].weight.grad = None
        frame = clipper.step()
        assert frame.tensors["0.weight"].status == ("none" if at % 2 else "seen")
