"""The user's own errors: they arrive unchanged, and the step after them is recorded right."""

from __future__ import annotations

import sys

import pytest
import torch

import gradmedic as gm
from hooks_training import batches, cross_entropy, mlp, recorded_norms, sgd, train
from hooks_training import single_thread as single_thread


class Broken(Exception):
    """The fault that is injected."""


def broken(*_args, **_kwargs):
    raise Broken("injected")


def test_the_step_after_a_failed_backward_is_right():
    """R78: a backward pass that raised and was repeated counts once, in the loss and in the micro-batches."""
    model = mlp()
    optimizer = sgd(model)
    (x, y), second = batches(2)
    with gm.watch(model, optimizer, strict=True) as monitor:
        hidden = model[1](model[0](x))
        hidden.register_hook(broken)
        with pytest.raises(Broken):
            torch.nn.functional.cross_entropy(model[2](hidden), y).backward()
        losses, norms = train(model, optimizer, [(x, y), second])
    assert monitor.run.series("loss").tolist() == pytest.approx(losses)
    assert monitor.run.series("micro_batches").tolist() == [1, 1]
    assert [pytest.approx(row) for row in recorded_norms(monitor.run)] == norms


def test_a_batch_left_out_belongs_to_no_step():
    """R78: gradients that are erased without a step (a bad batch) leave nothing in the next step's loss or clipping."""
    model = mlp()
    optimizer = sgd(model)
    losses = []
    with gm.watch(model, optimizer, strict=True) as monitor:
        for number, (x, y) in enumerate(batches(9)):
            optimizer.zero_grad()
            loss = cross_entropy(model, x, y) * (float("nan") if number % 3 == 1 else 1.0)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
            if not torch.isfinite(norm):
                continue
            losses.append(float(loss.detach()))
            optimizer.step()
    assert monitor.run.series("loss").tolist() == pytest.approx(losses)
    assert set(monitor.run.series("micro_batches").tolist()) == {1}
    assert "mid_accumulation" not in {event.get("placement") for event in monitor.run.events}
    assert "GM108" not in {finding.code for finding in monitor.diagnose()}


def test_accumulation_is_not_taken_for_a_batch_left_out():
    """R78: gradients that stay until the step are summed up, loss and all."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        losses = []
        for number, (x, y) in enumerate(batches(6)):
            loss = cross_entropy(model, x, y) / 3
            loss.backward()
            losses.append(float(loss.detach()))
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
    assert monitor.run.series("loss").tolist() == pytest.approx([sum(losses[:3]), sum(losses[3:])])
    assert monitor.run.series("micro_batches").tolist() == [3, 3]


class Moody(torch.optim.SGD):
    angry = False

    @torch.no_grad()
    def step(self, closure=None):
        if self.angry:
            raise Broken("the optimizer's own")
        return super().step(closure)


@pytest.mark.parametrize("kind", ["own step", "foreach"])
def test_the_step_after_a_failed_step_is_right(kind, monkeypatch):
    """R78: an optimizer that raised makes no frame; the next step is recorded as if it had not been there."""
    model = mlp()
    optimizer = Moody(model.parameters(), lr=0.1)
    data = batches(3)
    with gm.watch(model, optimizer, strict=True) as monitor:
        first, _ = train(model, optimizer, data[:1])
        if kind == "own step":
            optimizer.angry = True
        else:
            monkeypatch.setattr(sys.modules["torch.optim.sgd"], "sgd", broken)
        with pytest.raises(Broken):
            train(model, optimizer, data[1:2])
        optimizer.angry = False
        monkeypatch.undo()
        last, norms = train(model, optimizer, data[2:])
    assert monitor.run.series("loss").tolist() == pytest.approx(first + last)
    assert monitor.run.series("step").tolist() == [0, 1]
    assert monitor.run.series("micro_batches").tolist() == [1, 1]
    assert recorded_norms(monitor.run)[-1] == pytest.approx(norms[0])


def test_the_step_after_a_failed_closure_is_right():
    """R78: a closure that raised makes no frame, and the next step with one is whole."""
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)
    (x, y) = batches(1)[0]

    def closure():
        optimizer.zero_grad()
        loss = cross_entropy(model, x, y)
        loss.backward()
        return loss

    def failing():
        closure()
        raise Broken("the closure's own")

    with gm.watch(model, optimizer, strict=True) as monitor:
        with pytest.raises(Broken):
            optimizer.step(failing)
        optimizer.step(closure)
        with pytest.raises(Broken):
            optimizer.step(failing)
        optimizer.step(closure)
    assert monitor.run.series("step").tolist() == [0, 1]
    counts = monitor.run.series("micro_batches").tolist()
    assert all(1 <= count <= 4 for count in counts)
    assert all(value > 0 for value in monitor.run.series("grad_norm"))


def test_the_users_exception_reaches_the_user_unchanged():
    """R78: what a backward pass, a step or a closure raises is the user's own object, with no context of ours."""
    model = mlp()
    optimizer = Moody(model.parameters(), lr=0.1)
    optimizer.angry = True
    with gm.watch(model, optimizer, strict=True):
        loss = cross_entropy(model, *batches(1)[0])
        loss.backward()
        with pytest.raises(Broken) as caught:
            optimizer.step()
        assert caught.value.__context__ is None
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
