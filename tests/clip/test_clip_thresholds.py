"""Thresholds against numpy: what the history holds, when it counts, and what it never holds."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from clip_loop import drive, steps, treated
from hypothesis import given, settings
from hypothesis import strategies as st

import gradmedic as gm
from gradmedic.clip import ema_ratio, median, norm, param_ratio, percentile, warmup, zscore
from gradmedic.clip.thresholds.history import mean_and_std, median_and_mad, new_ring, push, quantile

NORMS = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=25)
NAN, INF = math.nan, math.inf
draw = np.random.default_rng(0)
SERIES = list(np.exp(draw.normal(size=60)))


def ring_of(values, window):
    ring = new_ring(window, (), torch.device("cpu"))
    for value in values:
        ring = push(ring, torch.tensor(value, dtype=torch.float64), torch.tensor(math.isfinite(value)))
    return ring


@settings(deadline=None, max_examples=80)
@given(NORMS, st.integers(1, 12), st.floats(0, 1))
def test_a_ring_has_numpys_statistics_of_its_last_values(values, window, share):
    ring, last = ring_of(values, window), np.array(values[-window:])
    assert quantile(ring, share).item() == pytest.approx(np.quantile(last, share), rel=1e-12)
    mean, std = mean_and_std(ring)
    assert mean.item() == pytest.approx(last.mean(), rel=1e-12)
    assert std.item() == pytest.approx(last.std(ddof=1) if len(last) > 1 else 0.0, rel=1e-9, abs=1e-12)
    middle, spread = median_and_mad(ring)
    assert middle.item() == pytest.approx(np.median(last), rel=1e-12)
    assert spread.item() == pytest.approx(np.median(np.abs(last - np.median(last))), rel=1e-9, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(NORMS, st.integers(1, 12), st.floats(0, 1), st.floats(1e-3, 1e3))
def test_one_more_value_can_be_counted_in(values, window, share, extra):
    found = quantile(ring_of(values, window), share, torch.tensor(extra, dtype=torch.float64))
    assert found.item() == pytest.approx(np.quantile([*values[-window:], extra], share), rel=1e-12)


def test_an_empty_ring_has_no_quantile():
    assert quantile(ring_of([], 4), 0.5).item() == INF


def test_what_is_not_valid_does_not_enter_a_ring():
    assert ring_of([1.0, NAN, 2.0, INF], 3)["values"].tolist() == [1.0, 2.0, INF]


def thresholds_of(threshold, norms):
    return [step.threshold for step in steps(norm(threshold), norms)]


@pytest.mark.parametrize("q", [0, 10, 50, 87.5, 95, 100])
@pytest.mark.parametrize("window", [3, 20])
def test_percentile(q, window):
    """Linear interpolation over the last norms, the current one excluded; raw norms are stored."""
    found = thresholds_of(percentile(q, window, min_samples=3, fallback=7.0), SERIES)
    for at, limit in enumerate(found):
        past = SERIES[max(0, at - window) : at]
        assert limit == pytest.approx(np.percentile(past, q) if at >= 3 else 7.0, rel=1e-12)


def test_the_known_percentile_of_autoclips_history():
    """[1, 2, 3, 4, 100] at 10 % is 1.4; a single norm is its own percentile (current included)."""
    found = [step.threshold for step in steps(gm.clip.autoclip(10), [1.0, 2.0, 3.0, 4.0, 100.0])]
    assert found[0] == 1.0
    assert found[-1] == pytest.approx(1.4)


@pytest.mark.parametrize("count", [4, 5])
def test_median_of_even_and_odd_numbers(count):
    """numpy's median: of an even number, the mean of the middle two (torch.median takes the lower)."""
    past = [1.0, 2.0, 4.0, 100.0, 3.0][:count]
    found = thresholds_of(median(3.0, 10, min_samples=1), [*past, 1.0])[-1]
    assert found == pytest.approx(3 * np.median(past))
    assert thresholds_of(median(3.0, 10, min_samples=1), [1.0, 2.0, 3.0, 4.0, 100.0, 1.0])[-1] == pytest.approx(9.0)


@pytest.mark.parametrize("window", [5, 30])
def test_zscore_stores_clipped_norms_and_takes_the_unbiased_deviation(window):
    found = steps(norm(zscore(2.0, window, min_samples=4, fallback=2.0)), SERIES)
    kept: list[float] = []
    for at, step in enumerate(found):
        last = np.array(kept[-window:])
        limit = 2.0 if at < 4 else last.mean() + 2 * max(last.std(ddof=1), 0.01 * last.mean())
        assert step.threshold == pytest.approx(limit, rel=1e-9)
        kept.append(min(SERIES[at], limit))


def test_robust_zscore():
    found = thresholds_of(zscore(2.0, 9, min_samples=4, fallback=2.0, robust=True), SERIES)
    for at in range(4, len(SERIES)):
        past = np.array(SERIES[max(0, at - 9) : at])
        middle = np.median(past)
        spread = max(1.4826 * np.median(np.abs(past - middle)), 0.01 * middle)
        assert found[at] == pytest.approx(middle + 2 * spread, rel=1e-9)


@pytest.mark.parametrize("robust", [False, True])
def test_norms_that_hardly_vary_are_no_hair_trigger(robust):
    """The deviation counts as at least 1 % of the norm: a rise of 2 % stays below three deviations."""
    transform = norm(zscore(3.0, 20, min_samples=5, robust=robust))
    assert drive(transform, [1.0] * 10 + [1.02])[-1] == 1.0
    assert drive(transform, [1.0] * 10 + [1.05])[-1] < 1.0


def test_ema_ratio():
    """A plain mean at first, later an exponential one, of norms after clipping."""
    found = steps(norm(ema_ratio(1.5, 0.9, min_samples=3, fallback=4.0)), SERIES)
    mean = 0.0
    for at, step in enumerate(found):
        limit = 1.5 * mean if at >= 3 else 4.0
        assert step.threshold == pytest.approx(limit, rel=1e-12)
        mean += (min(SERIES[at], limit) - mean) * max(1 / (at + 1), 0.1)


def test_ema_ratio_grows_by_a_bounded_factor():
    """Against a level that has risen for good: 1 + (1 - beta)(ratio - 1) a step."""
    limits = thresholds_of(ema_ratio(1.05, 0.98, min_samples=50, fallback=INF), [1.0] * 50 + [100.0] * 20)[51:]
    growth = [b / a for a, b in pairwise(limits)]
    assert growth == pytest.approx([1.001] * len(growth), rel=1e-6)


def test_schedules_and_numbers():
    assert thresholds_of(lambda step: 1.0 + step, [5.0] * 3) == [1.0, 2.0, 3.0]
    assert thresholds_of(2, [5.0] * 3) == [2.0] * 3
    assert thresholds_of(torch.tensor(0.5), [5.0]) == [0.5]


def test_a_schedule_that_goes_wrong_is_said():
    transform = norm(lambda step: 1.0 - step)
    with pytest.raises(gm.InputError, match=r"line \d+, returned 0.0 as the threshold of step 1; expected a num"):
        drive(transform, [1.0, 1.0])


def test_warmup_of_thresholds():
    """The second watches while the first is in force, and sees what the first has left."""
    found = thresholds_of(warmup(0.5, percentile(50, 10, min_samples=1), 3), [1.0, 2.0, 4.0, 9.0, 9.0])
    assert found == [0.5, 0.5, 0.5, 2.0, 3.0]
    kept = thresholds_of(warmup(0.5, ema_ratio(2.0, min_samples=1), 3), [1.0, 2.0, 4.0, 9.0])
    assert kept[3] == pytest.approx(2 * 0.5)


def test_warmup_of_transforms():
    transform = warmup(0.5, gm.clip.adagc(1.0, 0.5, 2, absolute=100.0), 3)
    found = steps(transform, [[1.0], [1.0], [1.0], [4.0]])
    assert [step.factor for step in found[:3]] == pytest.approx([0.5] * 3, rel=1e-5)
    assert found[3].factor == pytest.approx(0.25)
    assert found[3].decision.threshold is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: percentile(90, 8, min_samples=2),
        lambda: median(1.5, 8, min_samples=2),
        lambda: zscore(2.0, 8, min_samples=2),
        lambda: zscore(2.0, 8, min_samples=2, robust=True),
        lambda: ema_ratio(1.2, min_samples=2),
    ],
    ids=["percentile", "median", "zscore", "robust", "ema"],
)
def test_each_tensor_has_a_history_of_its_own(make):
    """per="tensor": the columns behave as if each were alone; one tensor's NaN does not enter its history only."""
    rows = draw.exponential(size=(25, 3))
    rows[7, 1], rows[11, 2] = NAN, INF
    together = np.array(drive(norm(make(), per="tensor"), rows))
    for column in range(3):
        alone = drive(norm(make()), [row[column] for row in rows])
        assert together[:, column] == pytest.approx(alone, rel=1e-12)


def clips():
    return {
        "percentile": norm(percentile(50, 20, min_samples=3)),
        "median": norm(median(1.5, 20, min_samples=3)),
        "zscore": norm(zscore(3.0, 20, min_samples=3)),
        "robust": norm(zscore(3.0, 20, min_samples=3, robust=True)),
        "ema": norm(ema_ratio(1.5, min_samples=3)),
        "autoclip": gm.clip.autoclip(10),
        "zclip": gm.clip.zclip(warmup=3),
        "adagc": gm.clip.adagc(warmup=3),
    }


@pytest.mark.parametrize("name", clips())
def test_a_history_of_zeros_does_not_erase_what_follows(name):
    """All gradients are zero at first (a masked loss, a branch that is not used yet): the tensor is not silenced."""
    found = drive(clips()[name], [0.0] * 30 + [0.5] * 40)
    assert found[:30] == [1.0] * 30
    assert min(found[30:]) > 0.3
    assert found[-1] > 0.9


@pytest.mark.parametrize(
    "make", [median, lambda factor, *a, **k: percentile(50, *a, **k)], ids=["median", "percentile"]
)
def test_norms_of_zero_are_not_part_of_a_history(make):
    assert thresholds_of(make(1.0, 9, min_samples=2, fallback=7.0), [2.0, 0.0, 0.0, 4.0, 5.0]) == [
        7.0,
        7.0,
        7.0,
        7.0,
        3.0,
    ]
    assert thresholds_of(zscore(1.0, 9, min_samples=2, fallback=INF), [2.0, 0.0, 2.0, 5.0])[-1] == pytest.approx(2.02)


@pytest.mark.parametrize("name", ["percentile", "median", "zscore", "robust", "ema", "adagc"])
def test_a_branch_that_is_seldom_used_is_not_silenced(name):
    """Zero on nine steps of ten, per tensor: the history is that of the steps on which it was used."""
    transform = clips()[name]
    if name != "adagc":
        transform = norm(transform.threshold, per="tensor")
    norms = [[1.0, 1.0 if step % 10 == 0 else 0.0] for step in range(100)]
    assert all(factors[1] > 0.5 for factors in drive(transform, norms)[::10])


def test_param_ratio():
    weights = [torch.tensor([3.0, 4.0]), torch.zeros(2)]
    gradients = [torch.tensor([6.0, 8.0]), torch.tensor([1.0, 0.0])]
    one, two = treated(norm(param_ratio(0.1, 1e-3), per="tensor"), gradients, weights)
    assert one.norm().item() == pytest.approx(0.5, rel=1e-5)
    assert two.norm().item() == pytest.approx(1e-4, rel=1e-5)
    both = treated(norm(param_ratio(0.1)), gradients, weights)
    assert math.hypot(*(g.norm().item() for g in both)) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.parametrize("limit", [-1, 0, 0.0, -INF, NAN, "1", True, None, [1.0], object()])
def test_numbers_that_make_no_sense(limit):
    """R62: said at construction."""
    for make in (norm, gm.clip.value, median, ema_ratio, zscore, param_ratio, lambda x: warmup(x, 1.0, 5)):
        with pytest.raises(gm.InputError, match=r"expected a number > 0"):
            make(limit)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: percentile(101), "between 0 and 100"),
        (lambda: percentile(0.5, 0), "window: expected a whole number of at least 1"),
        (lambda: percentile(50, 5, min_samples=6), "min_samples: expected at most the window"),
        (lambda: median(1.5, 5, min_samples=0), "min_samples: expected a whole number"),
        (lambda: percentile(50, fallback=-1.0), "fallback: expected a number > 0"),
        (lambda: ema_ratio(1.5, beta=1.0), "beta: expected a number between 0 and 1"),
        (lambda: warmup(1.0, 2.0, 0), "steps: expected a whole number of at least 1"),
        (lambda: norm(1.0, per="layer"), "per: expected one of model, tensor, unit"),
        (lambda: norm(1.0, norm_type=0), "norm_type: expected a number > 0"),
        (lambda: norm(percentile(95), per="unit"), "history for every output unit"),
        (lambda: norm(norm(1.0)), "got the transform"),
        (lambda: norm(lambda step: -1.0), r"threshold\(0\): expected a number > 0"),
        (lambda: gm.clip.zclip(alpha=1.5), "alpha"),
        (lambda: gm.clip.zclip(warmup=1), "warmup: expected a whole number of at least 2"),
        (lambda: gm.clip.adagc(beta=0), "beta"),
        (lambda: gm.clip.spike_clip(grace=-1), "grace"),
    ],
)
def test_other_arguments_that_make_no_sense(make, words):
    with pytest.raises(gm.InputError, match=words):
        make()
