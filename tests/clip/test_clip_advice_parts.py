"""The parts of the advice: health, spikes, step lengths, learning rates, layers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from clip_runs import Norms, finding, frame, noise, run_of
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import gradmedic as gm
from gradmedic.clip.trial.by_layer import group_tensors, layer_effects, layer_norms
from gradmedic.clip.trial.health import find_bound, spike_levels
from gradmedic.clip.trial.rates import drift_of, link_rates, pearson
from gradmedic.clip.trial.series import collect
from gradmedic.clip.trial.simulate import replay
from gradmedic.clip.trial.step_length import family_of, step_ratio


def series_of(norms, **values):
    return collect(run_of(norms, **values).frames())[0]


def test_spikes_stand_out_and_are_not_part_of_the_history():
    norms = noise(200)
    norms[[60, 61, 150]] = 50.0
    flags, levels = spike_levels(norms)
    assert np.flatnonzero(flags).tolist() == [60, 61, 150]
    assert np.isinf(levels[:16]).all()
    assert (levels[16:] > 1.5).all()
    assert (levels[16:] < 50.0).all()


def test_a_new_level_is_no_spike():
    norms = np.concatenate([noise(60), noise(60, 20.0)])
    flags, _ = spike_levels(norms)
    assert not flags.any()
    short = np.concatenate([noise(60), noise(8, 20.0), noise(60)])
    assert np.flatnonzero(spike_levels(short)[0]).tolist() == list(range(60, 68))


def test_steady_norms_have_no_spike_below_a_factor_of_1_8():
    norms = np.ones(100)
    norms[50], norms[70] = 1.7, 1.9
    assert np.flatnonzero(spike_levels(norms)[0]).tolist() == [70]


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-20, 1e20))
def test_spikes_do_not_depend_on_the_unit(unit):
    norms = noise(80)
    norms[40] = 30.0
    assert spike_levels(norms)[0].tolist() == spike_levels(norms * unit)[0].tolist()


@pytest.mark.parametrize(
    ("events", "place", "code"),
    [
        ([], 100, ""),
        ([finding("GM401", 60)], 60, "GM401"),
        ([finding("GM401", 60, "info")], 100, ""),
        ([finding("GM403", 60)], 100, ""),
        ([finding("GM401", 60, optimizer="another")], 100, ""),
        ([finding("GM401", 60, optimizer="optimizer"), finding("GM401", 40)], 40, "GM401"),
        ([finding("GM201", 60)], 100, ""),
    ],
)
def test_findings_bound_the_healthy_part(events, place, code):
    bound = find_bound(series_of(noise(100)), events)
    assert (bound.place, bound.code) == (place, code)
    assert bound.step == (place if place < 100 else None)


def test_a_nan_that_stays_bounds_and_one_that_passes_does_not():
    passing = [*noise(50), math.nan, *noise(50)]
    assert find_bound(series_of(passing), [finding("GM201", 50)]).place == 101
    staying = [*noise(50), *[math.nan] * 50]
    for events, code in (([finding("GM201", 50)], "GM201"), ([], "")):
        bound = find_bound(series_of(staying), events)
        assert (bound.place, bound.step, bound.code) == (50, 50, code)


def test_norms_that_leave_for_good_bound():
    bound = find_bound(series_of([*noise(80), *noise(20, 1e4)]), [])
    assert (bound.place, bound.step) == (80, 80)
    assert find_bound(series_of([*noise(80), *noise(20, 5.0)]), []).place == 100
    assert find_bound(series_of([*noise(95), *noise(5, 1e4)]), []).place == 100


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        *((name, "adaptive") for name in ("Adam", "AdamW", "NAdam", "Adamax", "RMSprop", "Adagrad", "FusedLAMB")),
        *((name, "sign") for name in ("Lion", "SignSGD", "Muon", "Rprop")),
        *((name, "plain") for name in ("SGD", "ASGD", "LARS")),
        *((name, "unknown") for name in ("", "MyOptimizer")),
    ],
)
def test_families(kind, family):
    assert family_of(kind) == family


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-4, 1.0), st.integers(0, 5))
def test_a_constant_factor_cancels_under_adam_and_shortens_under_sgd(factor, seed):
    norms = noise(40, spread=0.5, seed=seed)
    scale, never = np.full(40, factor), np.zeros(40, bool)
    assert step_ratio("adaptive", {}, norms, scale, never) == pytest.approx(1.0)
    assert step_ratio("adaptive", {"betas": [0.5, 0.9]}, norms, scale, never) == pytest.approx(1.0)
    assert step_ratio("plain", {}, norms, scale, never) == pytest.approx(factor)
    assert step_ratio("sign", {}, norms, scale, never) == 1.0
    assert step_ratio("unknown", {}, norms, scale, never) is None


def test_the_model_of_adam_is_adam_on_one_coordinate():
    import torch

    norms = noise(60, spread=0.6)
    scale = np.minimum(1.0, 0.9 / norms)
    lengths = []
    for gradients in (norms, norms * scale):
        weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
        optimizer = torch.optim.Adam([weight], lr=1.0, betas=(0.8, 0.95), eps=1e-300)
        total = 0.0
        for gradient in gradients:
            before = weight.item()
            weight.grad = torch.tensor(gradient, dtype=torch.float64)
            optimizer.step()
            total += abs(weight.item() - before)
        lengths.append(total)
    found = step_ratio("adaptive", {"betas": (0.8, 0.95)}, norms, scale, np.zeros(60, bool))
    assert found == pytest.approx(lengths[1] / lengths[0], rel=1e-9)


def test_skipped_steps_have_no_length():
    skipped = np.arange(40) % 4 == 0
    one = np.ones(40)
    assert step_ratio("plain", {}, one, one, skipped) == 0.75
    assert step_ratio("sign", {}, one, one, skipped) == 0.75
    assert step_ratio("adaptive", {"alpha": 0.99}, one, one, skipped) == pytest.approx(0.75)


def test_correlations_are_those_of_scipy():
    rng = np.random.default_rng(1)
    rates = np.exp(rng.normal(size=200).round(1)) * 1e-3  # rounded, so that there are ties
    norms = rates**0.5 * np.exp(rng.normal(size=200) * 0.3)
    link = link_rates(np.arange(200), rates, norms)
    assert link.window == 20
    assert link.whole == pytest.approx(stats.spearmanr(rates, norms).statistic)
    for stop, value in zip(link.steps, link.values, strict=True):
        part = slice(stop - 19, stop + 1)
        assert value == pytest.approx(stats.pearsonr(np.log(rates[part]), np.log(norms[part])).statistic)
    assert link.steps[0] == 19
    assert link.steps[-1] == 199
    assert link.span == pytest.approx(rates.max() / rates.min())
    assert link.level > 1


def test_without_a_changing_rate_there_is_no_correlation():
    norms = noise(100)
    assert link_rates(np.arange(100), np.full(100, 0.1), norms).whole is None
    assert link_rates(np.arange(100), np.full(100, 0.1), norms).span == 1.0
    assert link_rates(np.arange(100), np.full(100, np.nan), norms).span is None
    assert pearson(np.ones(5), np.arange(5.0)) is None


def test_drift():
    assert drift_of(np.repeat([1.0, 2.0, 6.0], 20)) == 6.0
    assert drift_of(np.ones(29)) is None


def test_layers_share_the_squared_norm():
    norms = noise(100)
    norms[90] = 40.0
    series = series_of(norms, tables=True)
    usable = np.ones(100, bool)
    groups = group_tensors(series.names, {"layers.1.weight": "head"})
    assert groups == {"layers.0": [0], "head": [1]}
    first, second = layer_norms(series, np.arange(100) != 90, usable, groups)
    assert (first.name, second.name) == ("head", "layers.0")
    assert (first.share, second.share) == (pytest.approx(0.64), pytest.approx(0.36))
    assert (first.leading_share, second.leading_share) == (1.0, 0.0)
    assert first.median == pytest.approx(0.8 * np.median(np.delete(norms, 90)))
    done = replay(gm.clip.norm(0.7, per="tensor"), series, by_tensor=True)
    effects = layer_effects(done, series, usable, groups)
    assert effects["head"][0] == pytest.approx((0.8 * norms > 0.7).mean())
    assert effects["layers.0"][1] == pytest.approx(np.minimum(1, 0.7 / (0.6 * norms + 1e-6)).mean())


def test_tensors_that_come_later_are_not_there_before():
    frames = [frame(at, 1.0, tensors=[1.0]) for at in range(3)] + [frame(3, 2.0, tensors=[1.0, math.sqrt(3.0)])]
    (series,) = collect(Norms(frames).frames())
    assert series.seen.tolist() == [[True, False]] * 3 + [[True, True]]
    assert series.names == ("layers.0.weight", "layers.1.weight")
    part = series.between(2, 4)
    assert part.row.tolist() == [0, 1]
    assert part.tensors[1, 1] == pytest.approx(math.sqrt(3.0))
