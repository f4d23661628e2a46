"""The user's own clipping: pre-clip and post-clip both recorded, the factor, how often, and whether in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from core_reference import batch, codes, events, frames, grad_norm, net, set_gradients, watch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

import gradmedic as gm

pytestmark = pytest.mark.filterwarnings("error")

mse = nn.functional.mse_loss

CLIPS: dict[str, Callable[[Any, float], Any]] = {
    "imported by name": clip_grad_norm_,
    "through torch.nn.utils": lambda p, limit: torch.nn.utils.clip_grad_norm_(p, limit),
    "foreach": lambda p, limit: clip_grad_norm_(p, limit, foreach=True),
    "one by one": lambda p, limit: clip_grad_norm_(p, limit, foreach=False),
    "a generator": lambda p, limit: clip_grad_norm_((each for each in p), limit),
    "norm and clip apart": lambda p, limit: torch.nn.utils.clip_grads_with_norm_(
        (p := list(p)), limit, torch.nn.utils.get_total_norm([each.grad for each in p])
    ),
    "ours": gm.clip_grad_norm_,
}


@pytest.mark.parametrize("how", CLIPS)
@pytest.mark.parametrize("every", [1, 3])
def test_pre_clip_and_post_clip_are_both_recorded(how, every):
    """R46: post = min(pre, max) within 1e-5, the factor, the flag and the running share, whoever clips."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    pre, post = [], []
    limit = 0.7
    with watch(model, optimizer, every=every) as monitor:
        for step in range(8):
            optimizer.zero_grad()
            mse(model(batch(step)[0]), batch(step)[1] * (step % 4)).backward()
            pre.append(grad_norm(model))
            CLIPS[how](model.parameters(), limit)
            post.append(grad_norm(model))
            optimizer.step()
        found = frames(monitor)
    clipped = [size > limit for size in pre]
    assert True in clipped
    assert False in clipped
    assert [frame.grad_norm for frame in found] == pytest.approx(pre, rel=1e-5)
    assert [frame.grad_norm_post for frame in found] == pytest.approx(post, rel=1e-5)
    assert post == pytest.approx([min(size, limit) for size in pre], rel=1e-5)
    assert [frame.clip_scale for frame in found] == pytest.approx([b / a for a, b in zip(pre, post, strict=True)], 1e-5)
    assert [frame.clipped for frame in found] == clipped
    assert {frame.clip_threshold for frame in found} == {limit}
    assert [f.clip_frequency for f in found] == pytest.approx([sum(clipped[: n + 1]) / (n + 1) for n in range(8)])
    for frame, scale in zip(found, (b / a for a, b in zip(pre, post, strict=True)), strict=True):
        assert all(row.clip_scale == pytest.approx(scale, rel=1e-5) for row in frame.tensors.values())


@pytest.mark.parametrize("kind", [2.0, 1.0, float("inf")])
def test_a_clip_by_another_norm_is_seen_by_what_it_did(kind):
    """R46: `max_norm` is compared with the norm that the user chose; the recorded norms are L2."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with watch(model, optimizer) as monitor:
        mse(model(batch(0)[0]), batch(0)[1]).backward()
        pre = grad_norm(model)
        clip_grad_norm_(model.parameters(), 0.1, norm_type=kind)
        post = grad_norm(model)
        optimizer.step()
    assert monitor.latest.grad_norm == pytest.approx(pre, rel=1e-5)
    assert monitor.latest.grad_norm_post == pytest.approx(post, rel=1e-5)
    assert monitor.latest.clipped


def test_a_clip_by_value_is_seen():
    """R46: the post-clip norm of clamped gradients, and the flag only when something was clamped."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with watch(model, optimizer) as monitor:
        for limit, clamped in ((1e-3, True), (1e3, False)):
            optimizer.zero_grad()
            mse(model(batch(0)[0]), batch(0)[1]).backward()
            pre = grad_norm(model)
            clip_grad_value_(model.parameters(), limit)
            post = grad_norm(model)
            optimizer.step()
            assert monitor.latest.grad_norm == pytest.approx(pre, rel=1e-5)
            assert monitor.latest.grad_norm_post == pytest.approx(post, rel=1e-5)
            assert monitor.latest.clipped is clamped


def test_two_clips_after_one_another_multiply():
    """R46: a part is clipped on its own, then everything together."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with watch(model, optimizer) as monitor:
        mse(model(batch(0)[0]), batch(0)[1]).backward()
        pre = grad_norm(model)
        before = {name: p.grad.norm().item() for name, p in model.named_parameters()}
        clip_grad_norm_(model[2].parameters(), 0.2)
        clip_grad_norm_(model.parameters(), 0.3)
        after = {name: p.grad.norm().item() for name, p in model.named_parameters()}
        optimizer.step()
    frame = monitor.latest
    assert frame.grad_norm == pytest.approx(pre, rel=1e-5)
    assert frame.grad_norm_post == pytest.approx(0.3, rel=1e-4)
    scales = {name: row.clip_scale for name, row in frame.tensors.items()}
    assert scales == pytest.approx({name: after[name] / before[name] for name in before}, rel=1e-5)


def test_gradients_changed_by_hand_after_the_clip_are_measured_again():
    """R46: what the optimizer uses counts, whoever changed it."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with watch(model, optimizer) as monitor:
        mse(model(batch(0)[0]), batch(0)[1]).backward()
        pre = grad_norm(model)
        clip_grad_norm_(model.parameters(), 0.3)
        model[0].weight.grad.mul_(0.5)
        post = grad_norm(model)
        optimizer.step()
    assert monitor.latest.grad_norm == pytest.approx(pre, rel=1e-5)
    assert monitor.latest.grad_norm_post == pytest.approx(post, rel=1e-5)


def test_one_clip_call_over_two_optimizers():
    """R46: each optimizer's frame has its own norms; the factor and the threshold are the joint ones."""
    models = {"a": net(1), "b": net(2)}
    optimizers = {name: torch.optim.SGD(model.parameters(), 0.05) for name, model in models.items()}
    everything = [p for model in models.values() for p in model.parameters()]
    with watch(models, optimizers) as monitor:
        for step in range(3):
            for optimizer in optimizers.values():
                optimizer.zero_grad()
            x, y = batch(step)
            (mse(models["a"](x), y) + mse(models["b"](x), y)).backward()
            pre = {name: grad_norm(model) for name, model in models.items()}
            total = clip_grad_norm_(everything, 0.5).item()
            for name in ("b", "a"):
                optimizers[name].step()
                frame = monitor.latest
                assert frame.optimizer == name
                assert frame.grad_norm == pytest.approx(pre[name], rel=1e-5)
                assert frame.grad_norm_post == pytest.approx(pre[name] * 0.5 / total, rel=1e-4)
                assert frame.clip_threshold == 0.5
                assert frame.clipped
                assert len(frame.tensors) == 4


def test_clipping_inside_a_closure_is_seen():
    """R31, R46: the last evaluation's norms, before and after the user's clip, for LBFGS and Adam."""
    for kind in (torch.optim.LBFGS, torch.optim.Adam):
        model = net()
        optimizer = kind(model.parameters(), lr=0.1)
        seen: list[tuple[float, float]] = []

        def closure(model: Any = model, optimizer: Any = optimizer, seen: Any = seen) -> torch.Tensor:
            optimizer.zero_grad()
            loss = mse(model(batch(0)[0]), batch(0)[1])
            loss.backward()
            pre = grad_norm(model)
            clip_grad_norm_(model.parameters(), 0.1)
            seen.append((pre, grad_norm(model)))
            return loss

        with watch(model, optimizer) as monitor:
            for _ in range(2):
                optimizer.step(closure)
                assert (monitor.latest.grad_norm, monitor.latest.grad_norm_post) == pytest.approx(seen[-1], rel=1e-5)
            assert "GM108" not in codes(monitor)


@pytest.mark.parametrize("fused", [False, True])
def test_clipping_unscaled_gradients_is_seen_in_true_units(fused):
    """R2, R46: unscale_, clip, step: the norms are in true units before and after, and the place is right."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024)
    with watch(model, optimizer) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(mse(model(batch(step)[0]), batch(step)[1])).backward()
            scaler.unscale_(optimizer)
            pre = grad_norm(model)
            clip_grad_norm_(model.parameters(), 0.2)
            post = grad_norm(model)
            scaler.step(optimizer)
            scaler.update()
            frame = monitor.latest
            assert (frame.grad_norm, frame.grad_norm_post) == pytest.approx((pre, post), rel=1e-5)
            assert frame.clip_threshold == 0.2
        assert "GM108" not in codes(monitor)


def test_clipping_scaled_gradients_is_named():
    """R2, R20: a clip before unscale_ works on scaled gradients: a finding, and the pre-clip norm in true units."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024)
    with watch(model, optimizer) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(mse(model(batch(step)[0]), batch(step)[1])).backward()
            pre = grad_norm(model) / 1024
            clip_grad_norm_(model.parameters(), 1.0)
            post = grad_norm(model) / 1024
            scaler.step(optimizer)
            scaler.update()
            frame = monitor.latest
            assert (frame.grad_norm, frame.grad_norm_post) == pytest.approx((pre, post), rel=1e-4)
        assert {event["placement"] for event in events(monitor, "clip_call")} == {"before_unscale"}
        assert "GM108" in codes(monitor)


@pytest.mark.parametrize("clip", [clip_grad_norm_, gm.clip_grad_norm_], ids=["torch's", "ours"])
@pytest.mark.parametrize("place", ["after_step", "before_backward"])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_clip_out_of_place_is_named_once(clip, place, set_to_none):
    """R45: clip after step, or before backward, has no effect: one finding that names the order, few events."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    told: list[gm.Finding] = []
    with watch(model, optimizer, on_finding=told.append) as monitor:
        for step in range(6):
            optimizer.zero_grad(set_to_none=set_to_none)
            if place == "before_backward":
                clip(model.parameters(), 1e-3)
            mse(model(batch(step)[0]), batch(step)[1]).backward()
            size = grad_norm(model)
            optimizer.step()
            if place == "after_step":
                clip(model.parameters(), 1e-3)
            assert monitor.latest.grad_norm_post == pytest.approx(size, rel=1e-6)
            assert not monitor.latest.clipped
        assert codes(monitor)[0] == "GM108"
        placements = [event["placement"] for event in events(monitor, "clip_call")]
    assert [finding.code for finding in told].count("GM108") == 1
    assert set(placements) == {place}
    assert len(placements) <= 3


def test_a_clip_in_its_place_is_no_finding():
    """R45: neither with accumulation, nor when a log of the norm is taken by `max_norm=inf`."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer) as monitor:
        for step in range(6):
            for micro in range(2):
                mse(model(batch(2 * step + micro)[0]), batch(step)[1]).backward()
            clip_grad_norm_(model.parameters(), float("inf"))
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        assert {event["placement"] for event in events(monitor, "clip_call")} == {"ok"}
        assert "GM108" not in codes(monitor)


@pytest.mark.parametrize("clip", [clip_grad_norm_, gm.clip_grad_norm_], ids=["torch's", "ours"])
def test_clipping_every_micro_batch_is_named(clip):
    """R20: a clip on each micro-batch, instead of on their sum, is a finding; the norms are those of the step."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            for micro in range(4):
                mse(model(batch(4 * step + micro)[0]), batch(step)[1]).backward()
                pre = grad_norm(model)
                clip(model.parameters(), 0.05)
                post = grad_norm(model)
            optimizer.step()
            assert monitor.latest.micro_batches == 4
            assert (monitor.latest.grad_norm, monitor.latest.grad_norm_post) == pytest.approx((pre, post), rel=1e-5)
        assert "GM108" in codes(monitor)
        assert "mid_accumulation" in {event["placement"] for event in events(monitor, "clip_call")}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_the_culprit_is_read_before_torchs_clip_spreads_it(value):
    """R4: torch's clip makes every gradient NaN or zero; the record has what was there before, and names the tensor."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)

    def make(parameter: torch.Tensor) -> torch.Tensor:
        gradient = torch.ones_like(parameter)
        if parameter is model[0].bias:
            gradient[1] = value
        return gradient

    with watch(model, optimizer) as monitor:
        set_gradients(model, make)
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found = monitor.findings
        origin = events(monitor, "origin")
    frame = monitor.latest
    sick = {name for name, row in frame.tensors.items() if row.nan_count + row.inf_count}
    assert sick == {"0.bias"}
    assert frame.nonfinite == 1
    assert (frame.tensors["0.bias"].nan_count, frame.tensors["0.bias"].inf_count) == (value != value, value == value)
    assert frame.tensors["0.weight"].norm == pytest.approx(20**0.5)
    assert not frame.grad_norm_post < float("inf")
    assert origin[0]["where"] == ["0.bias"]
    assert (origin[0]["nan_count"], origin[0]["inf_count"]) == (value != value, value == value)
    assert "GM201" in [finding.code for finding in found]


def test_huge_finite_gradients_have_their_true_norm():
    """R4: 1e25 in fp32 is a norm of 1e25 * sqrt(n), not infinity; torch's own clip then zeroes, which is recorded."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with watch(model, optimizer) as monitor:
        set_gradients(model, lambda p: torch.full_like(p, 1e25))
        expected = grad_norm(model)
        clip_grad_norm_(model.parameters(), 1.0)
        post = grad_norm(model)
        optimizer.step()
    assert monitor.latest.nonfinite == 0
    assert monitor.latest.grad_norm == pytest.approx(expected, rel=1e-6)
    assert monitor.latest.grad_norm_post == pytest.approx(post, rel=1e-5)


def test_a_subclass_that_clips_in_its_step_is_seen():
    """R46: an optimizer that clips its own gradients in `step()`: what it used, and what it was given."""

    class Clipping(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for group in self.param_groups:
                clip_grad_norm_(group["params"], 0.1)
            return super().step(closure)

    model = net()
    optimizer = Clipping(model.parameters(), 0.05)
    with watch(model, optimizer) as monitor:
        mse(model(batch(0)[0]), batch(0)[1]).backward()
        pre = grad_norm(model)
        optimizer.step()
    assert monitor.latest.grad_norm == pytest.approx(pre, rel=1e-5)
    assert monitor.latest.grad_norm_post == pytest.approx(0.1, rel=1e-4)
    assert monitor.latest.clipped
    assert monitor.latest.step == 0


@pytest.mark.parametrize("clip", [clip_grad_norm_, gm.clip_grad_norm_], ids=["torch's", "ours"])
def test_two_networks_clipped_one_after_the_other_before_both_step(clip):
    """R36, R46: actor and critic: the critic's backward pass leaves what was clipped alone; no fault."""
    models = {"actor": net(1), "critic": net(2)}
    optimizers = {name: torch.optim.SGD(model.parameters(), 0.01) for name, model in models.items()}
    with watch(models, optimizers) as monitor:
        for step in range(4):
            expected = {}
            for name, model in models.items():
                optimizers[name].zero_grad()
                mse(model(batch(step)[0]), batch(step)[1]).backward()
                pre = grad_norm(model)
                clip(model.parameters(), 0.3)
                expected[name] = (pre, grad_norm(model))
            for optimizer in optimizers.values():
                optimizer.step()
            pair = {frame.optimizer: (frame.grad_norm, frame.grad_norm_post) for frame in frames(monitor)[-2:]}
            assert pair == {name: pytest.approx(both, rel=1e-5) for name, both in expected.items()}
        assert "GM108" not in codes(monitor)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_are_clipped_and_thrown_away_are_no_fault(set_to_none):
    """R20: the first pass of SAM by hand: clip, climb, zero, evaluate again, clip, step."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    with watch(model, optimizer) as monitor:
        for step in range(4):
            for _ in range(2):
                optimizer.zero_grad(set_to_none=set_to_none)
                mse(model(batch(step)[0]), batch(step)[1]).backward()
                pre = grad_norm(model)
                clip_grad_norm_(model.parameters(), 0.3)
            optimizer.step()
            assert (monitor.latest.grad_norm, monitor.latest.grad_norm_post) == pytest.approx((pre, 0.3), rel=1e-4)
        assert "GM108" not in codes(monitor)


@pytest.mark.parametrize("clip", ["norm", "value", "ours"])
def test_histograms_are_of_the_gradients_before_the_clip(clip):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    transform = gm.clip.norm(1e-3) if clip == "ours" else None
    with gm.watch(model, optimizer, transform=transform, strict=True) as monitor:
        for step in range(2):
            mse(model(batch(step)[0]), batch(step)[1]).backward()
            exponents = {n: torch.frexp(p.grad.flatten()).exponent - 1 for n, p in model.named_parameters()}
            if clip == "norm":
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            elif clip == "value":
                torch.nn.utils.clip_grad_value_(model.parameters(), 1e-3)
            optimizer.step()
            table = monitor.latest.tensors
            assert (table.log2_hist is not None) == (step == 0)
            for name, bins in zip(table.names, table.log2_hist if step == 0 else [], strict=step == 0):
                reference = torch.bincount((exponents[name] + 48).clamp(0, 63), minlength=64)
                assert bins.tolist() == reference.tolist(), name
            optimizer.zero_grad()
