"""What holds for every method, whatever the norms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from clip_loop import INF, NAN, Treated, bits, drive, same_state, steps
from clip_reference import dense64
from hypothesis import given, settings
from hypothesis import strategies as st

import gradmedic as gm
from gradmedic.clip import (
    adagc,
    autoclip,
    chain,
    ema_ratio,
    layers,
    median,
    median_clip,
    norm,
    percentile,
    value,
    warmup,
    zclip,
    zscore,
)

METHODS = {
    "norm": lambda: norm(1.0),
    "percentile": lambda: norm(percentile(70, 7, min_samples=3)),
    "median": lambda: median_clip(1.2, 7, min_samples=3),
    "zscore": lambda: norm(zscore(1.5, 7, min_samples=3)),
    "robust": lambda: norm(zscore(1.5, 7, min_samples=3, robust=True)),
    "ema": lambda: norm(ema_ratio(1.1, min_samples=3)),
    "autoclip": lambda: autoclip(30, 7),
    "zclip": lambda: zclip(1.5, warmup=4),
    "adagc": lambda: adagc(warmup=4),
    "warmup": lambda: norm(warmup(0.5, median(1.2, 7, min_samples=1), 3)),
    "layers": lambda: layers({"0": zclip(1.5, warmup=4)}, default=0.8),
    "spikes": lambda: gm.guard.skip_spikes(z=3.0, window=7, min_samples=3),
}
BY_TENSOR = {
    "percentile": lambda: norm(percentile(70, 7, min_samples=3), per="tensor"),
    "ema": lambda: norm(ema_ratio(1.1, min_samples=3), per="tensor"),
    "adagc": lambda: adagc(warmup=4),
}
positive = st.floats(1e-3, 1e3)
rows = st.lists(st.tuples(positive, positive, positive), min_size=6, max_size=14)


@pytest.mark.parametrize("name", METHODS)
@settings(deadline=None, max_examples=15)
@given(rows, st.integers(0, 13), st.integers(0, 2), st.sampled_from([NAN, INF]))
def test_a_bad_step_anywhere_leaves_everything_as_if_it_had_not_been(name, norms, place, tensor, bad):
    """Trap 7: with a guard in front, states and all later factors are those of the run without that step."""
    transform = chain(gm.guard.skip_nonfinite(), METHODS[name]())
    place = min(place, len(norms))
    sick = list(norms[0])
    sick[tensor] = bad
    # Step numbers that schedules see would differ by one: the warm-up ends before the bad step, or is not reached.
    if name == "warmup" and place < 3:
        return
    with_bad = steps(transform, [*norms[:place], sick, *norms[place:]])
    without = steps(transform, norms)
    assert with_bad[place].skipped
    assert [s.factor for s in with_bad[:place] + with_bad[place + 1 :]] == [s.factor for s in without]
    assert same_state(with_bad[-1].state.parts["1"], without[-1].state.parts["1"]) or place == len(norms)


@pytest.mark.parametrize("name", [n for n in METHODS if n not in ("spikes", "layers")])
@settings(deadline=None, max_examples=15)
@given(rows)
def test_no_method_amplifies_and_none_exceeds_its_threshold(name, norms):
    """Trap 6: factors lie in [0, 1]; the joint norm afterwards is at most the threshold that is reported."""
    for row, step in zip(norms, steps(METHODS[name](), norms), strict=True):
        factors = np.broadcast_to(step.factor, 3)
        assert np.all((factors >= 0) & (factors <= 1))
        if step.decision.threshold is not None:
            assert math.hypot(*(np.array(row) * factors)) <= step.threshold * (1 + 1e-9)
        clipped = bool(step.decision.clipped)
        assert clipped == bool((factors < 1).any()) or np.all(factors > 1 - 2e-3)


@pytest.mark.parametrize("name", METHODS)
@settings(deadline=None, max_examples=10)
@given(rows, st.permutations(range(3)))
def test_the_order_of_tensors_does_not_matter(name, norms, order):
    if name == "layers":
        return
    straight = drive(METHODS[name](), norms)
    mixed = drive(METHODS[name](), [[row[at] for at in order] for row in norms])
    for one, two in zip(straight, mixed, strict=True):
        assert (one is None) == (two is None)
        if isinstance(one, list):
            one = [one[at] for at in order]
        if one is not None:
            assert two == pytest.approx(one, rel=1e-9)


@pytest.mark.parametrize("name", BY_TENSOR)
@settings(deadline=None, max_examples=15)
@given(rows, st.integers(0, 2), st.data())
def test_a_tensors_bad_steps_do_not_touch_the_others(name, norms, tensor, data):
    """per="tensor", without a guard: the healthy tensors' factors and histories are those of a run without it."""
    bad = data.draw(st.sets(st.integers(4, 13)))
    sick = [[NAN if at in bad and i == tensor else n for i, n in enumerate(row)] for at, row in enumerate(norms)]
    healthy = [i for i in range(3) if i != tensor]
    one, two = steps(BY_TENSOR[name](), norms), steps(BY_TENSOR[name](), sick)
    for at, (a, b) in enumerate(zip(one, two, strict=True)):
        left, right = np.broadcast_to(a.factor, 3), np.broadcast_to(b.factor, 3)
        assert list(left[healthy]) == list(right[healthy])
        if at in bad:
            assert right[tensor] == 1.0


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 999), st.sampled_from(sorted(METHODS)), st.sampled_from([NAN, INF, -INF]))
def test_a_sick_element_never_spreads(seed, name, bad):
    """R4, whatever the method: healthy tensors stay finite, and the sick one has no more sick elements than before."""
    generator = torch.Generator().manual_seed(seed)
    loop = Treated(METHODS[name]() if name != "layers" else layers({"p0": zclip()}, 0.8), [torch.ones(4)] * 3)
    for step in range(8):
        given_ = [torch.randn(4, generator=generator) * 3 for _ in range(3)]
        if step in (2, 6):
            given_[1][step % 4] = bad
        after = loop.step(given_)
        for one, two in zip(given_, after, strict=True):
            assert torch.equal(torch.isfinite(one), torch.isfinite(two))
            np.testing.assert_array_equal(
                dense64(two)[~np.isfinite(dense64(one))], dense64(one)[~np.isfinite(dense64(one))]
            )


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 999), st.sampled_from(["norm", "percentile", "median", "zscore", "ema", "autoclip", "zclip"]))
def test_a_joint_clip_keeps_the_direction_and_the_bits_below(seed, name):
    generator = torch.Generator().manual_seed(seed)
    loop = Treated(METHODS[name](), [torch.ones(3, 2), torch.ones(5)])
    for _ in range(8):
        size = float(torch.rand((), generator=generator) * 4)
        given_ = [torch.randn(s, generator=generator) * size for s in [(3, 2), (5,)]]
        after = loop.step(given_)
        one = np.concatenate([dense64(g).ravel() for g in given_])
        two = np.concatenate([dense64(g).ravel() for g in after])
        assert one @ two == pytest.approx(np.linalg.norm(one) * np.linalg.norm(two), rel=1e-6)
        if np.linalg.norm(one) < loop.decision.threshold.item() * (1 - 1e-9):
            assert [bits(a) for a in after] == [bits(g) for g in given_]


def test_clipping_the_sum_once_is_not_clipping_the_parts():
    """R20, trap 18: a decision about accumulated gradients; `value` is no exception."""
    parts = [torch.tensor([0.8, 0.0]), torch.tensor([0.8, -3.0])]
    for transform in (norm(1.0), value(1.0)):
        (whole,) = Treated(transform, [torch.zeros(2)]).step([parts[0] + parts[1]])
        apart = sum(Treated(transform, [torch.zeros(2)]).step([part])[0] for part in parts)
        assert not torch.allclose(whole, apart)
        assert whole[0].item() == pytest.approx(1.6 / math.hypot(1.6, 3) if transform == norm(1.0) else 1.0, rel=1e-5)


def test_each_state_belongs_to_one_optimizer():
    """R36: a transform is immutable; two optimizers that share it have histories of their own."""
    transform = norm(median(1.0, 5, min_samples=1))
    one, two = Treated(transform, [torch.ones(2)]), Treated(transform, [torch.ones(2)])
    one.step([torch.tensor([3.0, 4.0])])
    two.step([torch.tensor([0.3, 0.4])])
    one.step([torch.tensor([1.0, 0.0])])
    assert one.decision.threshold.item() == pytest.approx(5.0)
    assert two.state.parts["threshold"].shared["count"].item() == 1
    with pytest.raises(AttributeError):
        transform.per = "tensor"
