"""AutoClip, the median, ZClip, AdaGC and SPAM's spike clip: their papers' figures, without their codes' faults."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from clip_loop import INF, NAN, Treated, bits, drive, same_state, steps
from clip_reference import dense64

import gradmedic as gm
from gradmedic.clip import adagc, autoclip, chain, median_clip, spike_clip, zclip
from gradmedic.clip.methods.zclip import ZClipThreshold
from gradmedic.clip.norm import NormClip
from gradmedic.clip.state import State

draw = np.random.default_rng(1)
SERIES = list(np.exp(0.5 * draw.normal(size=80)))


def test_autoclip_against_its_paper():
    """Percentile of all norms so far, the current one included, raw norms stored; the first step is not clipped."""
    found = steps(autoclip(10, window=1000), SERIES)
    for at, step in enumerate(found):
        limit = np.percentile(SERIES[: at + 1], 10)
        assert step.threshold == pytest.approx(limit, rel=1e-12)
        assert step.factor == pytest.approx(min(1.0, limit / (SERIES[at] + 1e-6)), rel=1e-12)
    assert found[0].factor == pytest.approx(1.0, rel=2e-6)
    share = np.mean([bool(step.decision.clipped) for step in found])
    assert 0.8 < share < 1.0


def test_autoclip_forgets_what_is_older_than_its_window():
    found = steps(autoclip(50, window=4), SERIES)
    assert found[20].threshold == pytest.approx(np.median(SERIES[16:21]), rel=1e-12)


def test_autoclip_at_a_hundred_percent_never_clips():
    assert not any(bool(step.decision.clipped) for step in steps(autoclip(100), SERIES))


@pytest.mark.parametrize("make", [autoclip, median_clip, zclip, adagc], ids=lambda make: make.__name__)
@pytest.mark.parametrize("bad", [NAN, INF])
def test_one_bad_norm_changes_no_state(make, bad):
    """In the public codes a NaN makes every later percentile NaN, or switches ZClip off for good."""
    transform, at = make(), 30
    with_bad = steps(transform, [*SERIES[:at], bad, *SERIES[at:50]])
    without = steps(transform, SERIES[:50])
    assert same_state(with_bad[at].state, with_bad[at - 1].state)
    assert with_bad[at].factor == 1.0
    assert not bool(with_bad[at].decision.clipped)
    assert [step.factor for step in with_bad[at + 1 :]] == [step.factor for step in without[at:]]
    assert math.isfinite(with_bad[-1].factor)


def test_median_clip():
    found = steps(median_clip(1.5, 10, min_samples=3, fallback=0.7), SERIES)
    for at, step in enumerate(found):
        limit = 0.7 if at < 3 else 1.5 * np.median(SERIES[max(0, at - 10) : at])
        assert step.threshold == pytest.approx(limit, rel=1e-12)


def zclip_at(mean, variance, signal, **options):
    """One ZClip step from a given mean and variance, past its warm-up."""
    threshold = ZClipThreshold(options.get("z", 2.5), 0.97, 25, 1.0)
    shared = {
        "count": torch.tensor(25),
        "mean": torch.tensor(mean, dtype=torch.float64),
        "variance": torch.tensor(variance, dtype=torch.float64),
    }
    step = steps(NormClip(threshold), [signal], state=State(parts={"threshold": State(shared)}))[0]
    after = step.state.parts["threshold"].shared
    return step, after["mean"].item(), after["variance"].item()


@pytest.mark.parametrize(
    ("signal", "limit", "mean", "variance"),
    [(1.4, INF, 1.012, 0.043316), (2.0, 1.25, 1.0075, 0.040564), (11.0, 1.025, 1.00075, None)],
)
def test_zclips_known_values(signal, limit, mean, variance):
    """mean 1, std .2: z = 2 is not clipped, z = 5 is clipped to 1.25, z = 50 to 1.025: the larger, the smaller."""
    step, new_mean, new_variance = zclip_at(1.0, 0.04, signal)
    assert step.threshold == pytest.approx(limit, rel=1e-5)
    assert step.factor * signal == pytest.approx(min(signal, limit), rel=1e-5)
    assert new_mean == pytest.approx(mean, rel=1e-6)
    if variance is not None:
        assert new_variance == pytest.approx(variance, rel=1e-4)


def test_zclip_is_continuous_where_it_begins():
    below, above = (zclip_at(1.0, 0.04, 1.0 + 0.2 * z) for z in (2.4999, 2.5001))
    assert below[0].factor == 1.0
    assert above[0].factor == pytest.approx(1.0, abs=1e-3)


def test_zclip_does_not_take_every_rise_for_a_spike_where_norms_hardly_vary():
    """In the public code a deviation of 1e-6 is all there is: any rise above 2.5e-6 is cut."""
    assert zclip_at(1.0, 0.0, 1.02)[0].factor == 1.0
    assert zclip_at(1.0, 0.0, 1.10)[0].factor < 1.0


def test_zclips_warm_up_has_the_mean_and_the_populations_variance_of_raw_norms():
    found = steps(zclip(fallback=0.5), SERIES[:25])
    held = found[-1].state.parts["threshold"].shared
    assert held["mean"].item() == pytest.approx(np.mean(SERIES[:25]), rel=1e-12)
    assert held["variance"].item() == pytest.approx(np.var(SERIES[:25]), rel=1e-9)
    assert {step.threshold for step in found} == {0.5}


def test_zclip_has_no_second_clip_that_is_always_on():
    found = steps(zclip(warmup=5, fallback=INF), [100.0] * 5 + [101.0] * 5)
    assert [step.factor for step in found] == [1.0] * 10


def test_zclip_downward():
    """A fall is not clipped."""
    assert zclip_at(1.0, 0.04, 1e-9)[0].factor == 1.0


def adagc_at(gamma, signal):
    state = State({"count": torch.tensor(100)}, {"gamma": torch.tensor([gamma], dtype=torch.float64)})
    step = steps(adagc(), [signal], state=state)[0]
    return step.factor, step.state.by_tensor["gamma"].item()


@pytest.mark.parametrize(
    ("signal", "factor", "gamma"), [(0.5, 1.0, 0.99), (1.05, 1.0, 1.001), (2.0, 0.525, 1.001), (0.0, 1.0, 1.0)]
)
def test_adagcs_known_values(signal, factor, gamma):
    assert adagc_at(1.0, signal) == pytest.approx((factor, gamma), rel=1e-9)


def test_adagcs_warm_up_clips_jointly_and_keeps_the_least_norms():
    """By the joint norm, not its square as in the public code; references are of clipped norms."""
    rows = [[3.0, 4.0], [0.3, 0.4], [0.6, 8.0]]
    found = steps(adagc(warmup=3, absolute=1.0), rows)
    joint = [0.2, 1.0, 1 / math.hypot(0.6, 8.0)]
    for step, factor in zip(found, joint, strict=True):
        assert np.broadcast_to(step.factor, 2) == pytest.approx([factor] * 2, rel=1e-12)
    gamma = found[-1].state.by_tensor["gamma"].tolist()
    assert gamma == pytest.approx([min(0.6, 0.3, 0.6 * joint[2]), min(0.8, 0.4, 8 * joint[2])])


def test_an_expert_that_was_never_used_is_not_silenced():
    """A reference of 0 would be a threshold of 0 for ever; it begins with its first norm, clipped jointly."""
    found = steps(adagc(warmup=5), [[0.5, 0.0]] * 30 + [[0.5, 0.3]] * 10)
    assert [step.factor[1] for step in found[30:]] == [1.0] * 10
    assert found[-1].state.by_tensor["gamma"][1].item() == pytest.approx(0.3)


def test_a_sick_tensor_does_not_touch_the_references_or_factors_of_the_others():
    clean = steps(adagc(warmup=3), [[1.0, 1.0]] * 3 + [[2.0, 2.0]])
    sick = steps(adagc(warmup=3), [[1.0, 1.0]] * 3 + [[2.0, NAN]])
    assert sick[-1].factor[0] == clean[-1].factor[0] < 1
    assert sick[-1].factor[1] == 1.0
    assert sick[-1].state.by_tensor["gamma"][1] == clean[-2].state.by_tensor["gamma"][1]


def test_a_tensor_that_is_clipped_for_good_recovers_by_a_thousandth_a_step():
    found = steps(adagc(warmup=1, absolute=INF), [1.0] + [10.0] * 11)
    gamma = [step.state.by_tensor["gamma"].item() for step in found]
    assert [b / a for a, b in pairwise(gamma)] == pytest.approx([1.001] * 11, rel=1e-9)


MOMENT = 1e-4


def spiked(gradients, moment, *, grace=0, **options):
    loop = Treated(
        spike_clip(5000.0, grace), [torch.zeros_like(m) for m in moment], second_moment=_lookup(moment), **options
    )
    return loop, loop.step(gradients)


def _lookup(moments):
    queue = {}

    def read(parameter):
        if id(parameter) not in queue:
            queue[id(parameter)] = moments[len(queue)]
        return queue[id(parameter)]

    return read


def test_spike_clip_against_numpy():
    generator = torch.Generator().manual_seed(0)
    gradient, moment = torch.randn(40, generator=generator), torch.rand(40, generator=generator) * MOMENT
    moment[::7] = 0.0
    loop, (after,) = spiked([gradient], [moment])
    g, v = dense64(gradient), dense64(moment)
    limit = np.where(v > 0, np.sqrt(5000 * v), np.inf)
    assert dense64(after) == pytest.approx(np.clip(g, -limit, limit), rel=1e-6)
    assert bool(loop.decision.clipped)
    same = np.abs(g) < limit
    assert np.array_equal(dense64(after)[same], g[same])


def test_a_row_whose_second_moment_is_zero_is_not_frozen():
    """Every gradient of an embedding row that was never used exceeds 5000 * 0: the public code erases it."""
    _, (after,) = spiked([torch.tensor([[9.0, 9.0], [9.0, 9.0]])], [torch.tensor([[0.0, 0.0], [MOMENT, MOMENT]])])
    assert after[0].tolist() == [9.0, 9.0]
    assert after[1].tolist() == pytest.approx([math.sqrt(0.5)] * 2)


def test_spike_clip_leaves_the_first_steps_and_what_is_not_finite_alone():
    given = torch.tensor([9.0, NAN, INF, -INF])
    loop, (after,) = spiked([given], [torch.full((4,), MOMENT)], grace=1)
    assert bits(after) == bits(given)
    (after,) = loop.step([given])
    np.testing.assert_allclose(dense64(after), [math.sqrt(0.5), NAN, INF, -INF], rtol=1e-6)
    assert bool(loop.decision.clipped)


def test_spike_clip_without_a_second_moment_yet():
    loop = Treated(spike_clip(grace=0), [torch.zeros(2)], second_moment=lambda p: None)
    (after,) = loop.step([torch.tensor([1e9, 1.0])])
    assert after.tolist() == [1e9, 1.0]
    assert not bool(loop.decision.clipped)


def test_spike_clip_of_a_sparse_gradient_reads_the_rows_that_it_has():
    moment = torch.zeros(6, 2)
    moment[1], moment[4] = MOMENT, 4 * MOMENT
    rows = torch.sparse_coo_tensor([[4, 1, 1]], [[9.0, 0.1], [5.0, 0.2], [4.0, 0.1]], (6, 2), check_invariants=True)
    loop, (after,) = spiked([rows], [moment])
    assert after.is_sparse
    root = math.sqrt(0.5)
    assert dense64(after)[[1, 4]] == pytest.approx(np.array([[root, 0.3], [2 * root, 0.1]]), rel=1e-6)
    assert bool(loop.decision.clipped)


def test_spike_clip_of_complex_gradients_takes_each_part_by_itself():
    """R61: Adam keeps a second moment for the real and one for the imaginary part."""
    moment = torch.tensor([complex(MOMENT, 4 * MOMENT)] * 2, dtype=torch.complex64)
    loop, (after,) = spiked([torch.tensor([9 - 9j, 0.1 + 0.1j], dtype=torch.complex64)], [moment])
    root = math.sqrt(0.5)
    assert torch.view_as_real(after).tolist() == [pytest.approx([root, -2 * root]), pytest.approx([0.1, 0.1])]
    assert bool(loop.decision.clipped)


def test_spike_clip_under_a_loss_scale_compares_true_units():
    _, (after,) = spiked([torch.tensor([64 * 0.5, 64 * 9.0])], [torch.full((2,), MOMENT)], loss_scale=64.0)
    assert after.tolist() == pytest.approx([64 * 0.5, 64 * math.sqrt(0.5)])


@pytest.mark.parametrize("k", [0.25, 1024.0])
@pytest.mark.parametrize(
    "make",
    [
        lambda k: autoclip(10),
        lambda k: median_clip(1.2, 20, min_samples=3, fallback=k),
        lambda k: gm.clip.norm(gm.clip.zscore(1.5, 20, min_samples=3, fallback=k)),
        lambda k: gm.clip.norm(gm.clip.ema_ratio(1.1, min_samples=3, fallback=k)),
        lambda k: adagc(warmup=5, absolute=k),
        lambda k: chain(gm.guard.skip_spikes(min_samples=5, window=20, z=3.0), autoclip(50)),
    ],
    ids=["autoclip", "median", "zscore", "ema", "adagc", "guarded"],
)
def test_relative_methods_do_not_depend_on_the_unit(make, k):
    """Gradients k times as large give the same factors, but for the 1e-6 of torch's formula."""
    plain, scaled = drive(make(1.0), SERIES), drive(make(k), [k * norm for norm in SERIES])
    assert [a is None for a in plain] == [a is None for a in scaled]
    kept = [(a, b) for a, b in zip(plain, scaled, strict=True) if a is not None]
    assert [b for _, b in kept] == pytest.approx([a for a, _ in kept], rel=2e-5)
