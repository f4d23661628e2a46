"""What a step is: accumulation, sampling, closures, losses, learning rates, and numbers read before they are gone."""

from __future__ import annotations

import pytest
import torch
from core_reference import batch, codes, events, frames, grad_norm, net, norm, watch
from torch import nn

pytestmark = pytest.mark.filterwarnings("error")

mse = nn.functional.mse_loss


@pytest.mark.parametrize("accumulate", [2, 3])
@pytest.mark.parametrize("every", [1, 2, 5])
def test_one_frame_per_step_with_the_accumulated_gradient(accumulate, every):
    """R19: one record per optimizer step, sampling counted in optimizer steps, also with a ragged last group."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    micro_batches = 7 * accumulate + 1
    norms, losses, counts = [], [], []
    with watch(model, optimizer, every=every) as monitor:
        total, count = 0.0, 0
        for micro in range(micro_batches):
            loss = mse(model(batch(micro)[0]), batch(micro)[1]) / accumulate
            loss.backward()
            total, count = total + loss.item(), count + 1
            if count == accumulate or micro == micro_batches - 1:
                norms.append(grad_norm(model))
                losses.append(total)
                counts.append(count)
                optimizer.step()
                optimizer.zero_grad()
                total, count = 0.0, 0
        found = frames(monitor)
    assert [frame.step for frame in found] == list(range(8))
    assert [frame.micro_batches for frame in found] == counts
    assert [frame.grad_norm for frame in found] == pytest.approx(norms, rel=1e-6)
    assert [frame.loss for frame in found] == pytest.approx(losses, rel=1e-6)
    assert [frame.step for frame in found if len(frame.tensors)] == list(range(0, 8, every))
    assert monitor.run.series("grad_norm").tolist() == pytest.approx(norms, rel=1e-6)


def test_accumulated_micro_batches_have_the_norm_of_the_whole_batch():
    """R20: the norm of four micro-batches' sum is that of one big batch, with no factor of the accumulation."""
    x, y = batch(0, rows=16)
    model, whole = net(), net()
    mse(whole(x), y).backward()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as monitor:
        for part in range(4):
            rows = slice(4 * part, 4 * part + 4)
            (mse(model(x[rows]), y[rows]) / 4).backward()
        optimizer.step()
    assert monitor.latest.grad_norm == pytest.approx(grad_norm(whole), rel=1e-5)
    assert monitor.latest.loss == pytest.approx(mse(net()(x), y).item(), rel=1e-5)


def test_numbers_are_read_before_the_step_and_stay_what_they_were():
    """R77: what is asked for later is the step's record, not a second look at gradients that are zeroed or scaled."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as monitor:
        mse(model(batch(0)[0]), batch(0)[1]).backward()
        expected = {name: norm([p.grad]) for name, p in model.named_parameters()}
        optimizer.step()
        held = monitor.latest
        for parameter in model.parameters():
            parameter.grad.mul_(1e-3)
        optimizer.zero_grad(set_to_none=True)
        assert monitor.latest is held
    assert {name: row.norm for name, row in held.tensors.items()} == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_both_ways_of_zeroing_give_the_same_numbers(set_to_none):
    """R77: no step shows the gradient of the step before, or none."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    expected = []
    with watch(model, optimizer) as monitor:
        for step in range(4):
            optimizer.zero_grad(set_to_none=set_to_none)
            mse(model(batch(step)[0]), batch(step)[1]).backward()
            expected.append(grad_norm(model))
            optimizer.step()
        found = frames(monitor)
    assert [frame.grad_norm for frame in found] == pytest.approx(expected, rel=1e-6)
    assert not any(frame.stale_grads for frame in found)
    assert {row.status for frame in found for row in frame.tensors.values()} == {"seen"}


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_makes_one_frame_a_step_and_counts_its_evaluations(search):
    """R31: LBFGS evaluates its closure several times in one step; the frame holds the last evaluation."""
    model = net()
    optimizer = torch.optim.LBFGS(model.parameters(), 0.5, max_iter=5, line_search_fn=search)
    calls: list[tuple[float, float]] = []
    expected = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = mse(model(batch(0)[0]), batch(0)[1])
        loss.backward()
        calls.append((loss.item(), grad_norm(model)))
        return loss

    with watch(model, optimizer) as monitor:
        for _ in range(3):
            calls.clear()
            optimizer.step(closure)
            expected.append((len(calls), *calls[-1]))
        found = frames(monitor)
        assert "GM101" not in codes(monitor)
    assert [frame.step for frame in found] == [0, 1, 2]
    assert [frame.micro_batches for frame in found] == [count for count, _, _ in expected]
    assert [frame.loss for frame in found] == pytest.approx([loss for _, loss, _ in expected], rel=1e-6)
    assert [frame.grad_norm for frame in found] == pytest.approx([size for _, _, size in expected], rel=1e-6)
    assert not any(frame.stale_grads for frame in found)


def test_a_closure_of_an_ordinary_optimizer_makes_one_frame_a_step():
    """R31: `Adam.step(closure)`, positional and by keyword; its loss is returned unchanged."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    expected = []

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = mse(model(batch(1)[0]), batch(1)[1])
        loss.backward()
        expected.append((loss.item(), grad_norm(model)))
        return loss

    with watch(model, optimizer) as monitor:
        returned = [optimizer.step(closure), optimizer.step(closure=closure)]
        found = frames(monitor)
    assert [loss.item() for loss in returned] == [loss for loss, _ in expected]
    assert [frame.loss for frame in found] == pytest.approx([loss for loss, _ in expected], rel=1e-6)
    assert [frame.grad_norm for frame in found] == pytest.approx([size for _, size in expected], rel=1e-6)
    assert [frame.micro_batches for frame in found] == [1, 1]


def test_a_closure_that_runs_no_backward_is_no_loss():
    """R31: a closure that only returns a number gives a frame without a loss, and gradients as they are."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer) as monitor:
        optimizer.step(lambda: torch.tensor(3.0))
    assert monitor.latest.loss is None
    assert monitor.latest.grad_norm is None
    assert {row.status for row in monitor.latest.tensors.values()} == {"none"}


def test_a_closure_that_raises_leaves_the_error_and_the_next_step_as_they_were():
    """R31: the user's own exception passes through, and the next step is an ordinary one."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def broken() -> torch.Tensor:
        raise ZeroDivisionError("mine")

    with watch(model, optimizer) as monitor:
        with pytest.raises(ZeroDivisionError, match="mine"):
            optimizer.step(broken)
        mse(model(batch(0)[0]), batch(0)[1]).backward()
        expected = grad_norm(model)
        optimizer.step()
    assert monitor.latest.step == 0
    assert monitor.latest.grad_norm == pytest.approx(expected, rel=1e-6)


def test_a_loss_is_the_sum_of_its_roots():
    """Several backward calls, several roots in one call, and a root with weights of its own."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer) as monitor:
        x, y = batch(0)
        one, two = mse(model(x), y), model(x).abs().mean()
        expected = one.item() + two.item()
        torch.autograd.backward([one, two])
        third = model(x)
        weights = torch.full_like(third, 0.25)
        expected += (third * weights).sum().item()
        third.backward(weights)
        optimizer.step()
    assert monitor.latest.loss == pytest.approx(expected, rel=1e-6)
    assert monitor.latest.micro_batches == 2


def test_a_loss_of_nan_is_nan_and_an_unknown_loss_is_none():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with watch(model, optimizer) as monitor:
        mse(model(batch(0)[0] * float("nan")), batch(0)[1]).backward()
        optimizer.step()
        assert monitor.latest.loss != monitor.latest.loss
        assert monitor.latest.grad_norm != monitor.latest.grad_norm
        optimizer.zero_grad()
        optimizer.step()
        assert monitor.latest.loss is None
        assert monitor.latest.grad_norm is None


def test_a_logged_loss_overrides_the_one_that_was_seen():
    """`log` before the step and right after it mean the same step; tensors and numbers are welcome."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer) as monitor:
        for step, after in enumerate((False, True)):
            mse(model(batch(step)[0]), batch(step)[1]).backward()
            if after:
                optimizer.step()
            monitor.log(loss=torch.tensor(7.0 + step), accuracy=0.5)
            if not after:
                optimizer.step()
        found = frames(monitor)
    assert [frame.loss for frame in found] == [7.0, 8.0]
    assert [dict(frame.logged) for frame in found] == [{"accuracy": 0.5}] * 2


def test_learning_rates_are_those_that_the_step_used():
    """Per group, with a scheduler in between, as a tensor too."""
    model = net()
    groups = [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters(), "lr": torch.tensor(0.25)}]
    optimizer = torch.optim.SGD(groups)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with watch(model, optimizer) as monitor:
        for step in range(3):
            mse(model(batch(step)[0]), batch(step)[1]).backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        found = frames(monitor)
    assert [frame.lr for frame in found] == pytest.approx([0.1, 0.05, 0.025])
    assert [list(frame.lrs) for frame in found] == [pytest.approx([0.1 * f, 0.25 * f]) for f in (1, 0.5, 0.25)]


def test_gradients_that_are_never_zeroed_are_told_from_accumulation():
    """The mark is set from the second step on, and only where a used gradient was added to."""
    for zero, expected in ((False, [False, True, True]), (True, [False, False, False])):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)
        with watch(model, optimizer) as monitor:
            for step in range(3):
                for micro in range(2):
                    mse(model(batch(step + micro)[0]), batch(step)[1]).backward()
                optimizer.step()
                if zero:
                    optimizer.zero_grad(set_to_none=False)
            assert [frame.stale_grads for frame in frames(monitor)] == expected


def test_a_gradient_penalty_counts_its_backward_once_and_its_inner_gradient_never():
    """The inner `autograd.grad(create_graph=True)` is no training gradient: the norm is that of the full loss."""
    model = net()
    twin = net()
    optimizer, other = (torch.optim.SGD(m.parameters(), 0.01) for m in (model, twin))

    def penalized(m: nn.Module, step: int) -> torch.Tensor:
        x = batch(step)[0].requires_grad_()
        out = m(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return mse(out, batch(step)[1]) + (slope.norm(2, dim=1) - 1).square().mean()

    expected = []
    for step in range(4):
        other.zero_grad()
        loss = penalized(twin, step)
        loss.backward()
        expected.append((loss.item(), grad_norm(twin)))
        other.step()
    with watch(model, optimizer) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            penalized(model, step).backward()
            optimizer.step()
        found = frames(monitor)
    assert [frame.micro_batches for frame in found] == [1] * 4
    assert [(frame.loss, frame.grad_norm) for frame in found] == [pytest.approx(pair, rel=1e-6) for pair in expected]
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_a_step_without_any_gradient_is_not_a_norm_of_zero():
    """None, and not 0, before any backward pass; a gradient of exact zeros is 0."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer) as monitor:
        optimizer.step()
        assert monitor.latest.grad_norm is None
        (model(batch(0)[0]).sum() * 0.0).backward()
        optimizer.step()
        assert monitor.latest.grad_norm == 0.0
        assert {row.status for row in monitor.latest.tensors.values()} == {"seen"}
        assert all(row.zero_count == row.numel for row in monitor.latest.tensors.values())


def test_parameters_that_are_added_or_thawed_later_are_seen_from_their_first_step():
    """Groups that grow and layers that thaw need no new attachment, and their tables carry the right names."""
    model = net()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    optimizer = torch.optim.SGD(model[2].parameters(), 0.01)
    names = []
    with watch(model, optimizer) as monitor:
        for step in range(4):
            if step == 1:
                optimizer.add_param_group({"params": model[0].parameters()})
            if step == 2:
                for parameter in model[0].parameters():
                    parameter.requires_grad_(True)
            optimizer.zero_grad()
            mse(model(batch(step)[0]), batch(step)[1]).backward()
            expected = grad_norm(model)
            optimizer.step()
            names.append(set(monitor.latest.tensors))
            assert monitor.latest.grad_norm == pytest.approx(expected, rel=1e-6)
    late = {"2.weight", "2.bias"}
    assert names == [late, late, late | {"0.weight", "0.bias"}, late | {"0.weight", "0.bias"}]


def test_watching_a_layer_thaw_tells_no_fault():
    """A frozen layer is frozen, neither unused nor vanishing; the facts follow when it thaws."""
    model = net()
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer) as monitor:
        for step in range(60):
            if step == 20:
                model[0].requires_grad_(True)
            optimizer.zero_grad()
            mse(model(batch(step)[0]), batch(step)[1]).backward()
            optimizer.step()
        trainable = [event["facts"]["parameters"]["0.weight"]["trainable"] for event in events(monitor, "facts")]
        assert [finding for finding in monitor.diagnose() if finding.severity != "info"] == []
    assert trainable[0] is False
    assert trainable[-1] is True
