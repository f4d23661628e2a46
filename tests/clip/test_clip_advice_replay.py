"""Advice and action are the same: replayed norms give what the transforms did in training, bit for bit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from clip_runs import Norms, frame, run_of
from hypothesis import given, settings
from hypothesis import strategies as st

import gradmedic as gm
from gradmedic.cli.transform_spec import parse_transform
from gradmedic.clip.trial.candidates import candidates, expression, rounded
from gradmedic.clip.trial.series import collect
from gradmedic.clip.trial.simulate import replay

LEVELS = {"p75": 1.25, "p90": 1.5, "p95": 2.0}
METHODS = [(each.method, each.by_tensor) for each in candidates(LEVELS, 0.3, tables=True)]


def trained(transform, steps=90):
    """Train with a transform; some batches are huge, one has a NaN."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, transform=transform, strict=True) as monitor:
        for step in range(steps):
            x = torch.randn(8, 4) * (30.0 if step % 40 == 35 else 1.0)
            if step == 50:
                x[0, 0] = math.nan
            (model(x) - 3 * x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 50:  # the NaN has reached the weights, unless a guard has kept it out
                for weight in model.parameters():
                    weight.data.nan_to_num_(0.1)
    return monitor.run


@pytest.mark.parametrize(("method", "by_tensor"), METHODS)
def test_the_replay_is_what_was_done(method, by_tensor):
    transform = parse_transform(method)
    run = trained(transform)
    (series,) = collect(run.frames())
    series = replace(series, skipped=np.zeros(len(series), bool))  # those were the transform's own
    done = replay(transform, series, by_tensor=by_tensor)
    assert done.places.tolist() == list(range(len(series)))
    frames = list(run.frames())
    finite = [at for at, each in enumerate(frames) if math.isfinite(each.grad_norm)]
    assert len(finite) == len(frames) - 1
    acted = np.array([1.0 if f.skipped else f.transform_scale for f in frames])
    np.testing.assert_allclose(done.scale[finite], acted[finite], rtol=1e-12)
    assert done.skipped.tolist() == [each.skipped for each in frames]
    clipped = [bool(each.clipped) for each in frames]
    assert [bool(done.clipped[at]) for at in finite] == [clipped[at] for at in finite]
    assert any(clipped) or any(done.skipped)


@pytest.mark.parametrize("method", [method for method, by_tensor in METHODS if not by_tensor])
def test_the_whole_and_its_tensors_give_the_same(method):
    norms = [1.0, 0.5, 3.0, 40.0, 0.9, 1.1, 2.0] * 12
    (series,) = collect(run_of(norms, tables=True).frames())
    whole, parts = (replay(parse_transform(method), series, by_tensor=flag) for flag in (False, True))
    np.testing.assert_allclose(whole.scale, parts.scale, rtol=1e-9)
    assert whole.skipped.tolist() == parts.skipped.tolist()


def test_golden_sequence():
    norms = [1.0, 1.2, 0.8, 1.0, 10.0, 1.0, math.nan, 1.0, math.inf, 2.0, 0.0]
    (series,) = collect(run_of(norms).frames())
    fixed = replay(gm.clip.norm(1.0), series)
    expected = [0.999999, 0.833333, 1, 0.999999, 0.1, 0.999999, 1, 0.999999, 1, 0.5, 1]
    np.testing.assert_allclose(fixed.scale, expected, atol=2e-6)
    assert np.flatnonzero(fixed.clipped).tolist() == [1, 4, 9]
    middle = replay(gm.clip.norm(gm.clip.median(2, 4, min_samples=3, fallback=math.inf)), series)
    np.testing.assert_allclose(middle.scale, [1, 1, 1, 1, 0.2, 1, 1, 1, 1, 1, 1], atol=2e-6)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.floats(1e-6, 1e6) | st.just(math.nan), min_size=1, max_size=20),
    st.floats(1e-3, 1e3),
)
def test_constant_thresholds_may_be_tried_all_at_once(norms, limit):
    (series,) = collect(run_of(norms).frames())
    at_once = replay(gm.clip.norm(limit), series)
    one_by_one = replay(gm.clip.chain(limit), series)  # a chain takes the way of all others
    assert at_once.scale.tolist() == one_by_one.scale.tolist()
    assert at_once.clipped.tolist() == one_by_one.clipped.tolist()


def test_history_stands_still_where_the_run_itself_skipped():
    frames = [frame(at, 1.0 + at % 3) for at in range(30)]
    skipped = [frame(at, 900.0, skipped=True) for at in range(30, 60)]
    later = [frame(at, 1.0 + at % 3) for at in range(60, 80)]
    transform = gm.clip.norm(gm.clip.percentile(50))
    with_them, without = (
        replay(transform, collect(Norms(each).frames())[0]) for each in (frames + skipped + later, frames + later)
    )
    assert with_them.scale[60:].tolist() == without.scale[30:].tolist()


@pytest.mark.parametrize(("method", "by_tensor"), METHODS)
def test_what_is_recommended_can_be_typed(method, by_tensor):
    (candidate,) = [each for each in candidates(LEVELS, 0.3, tables=True) if each.method == method]
    assert parse_transform(method) == candidate.transform
    assert eval(expression(method), {"gm": gm}) == candidate.transform
    assert candidate.by_tensor == by_tensor


def test_thresholds_that_meet_are_tried_once():
    same = list(candidates({"p75": 1.0, "p90": 1.0, "p95": 1.0}, 1.0, tables=False))
    assert [(each.method, each.note) for each in same if not each.adapts] == [("norm(1.0)", "p95")]
    different = [each.note for each in candidates(LEVELS, 0.3, tables=False) if not each.adapts]
    assert different == ["own", "usual", "p75", "p90", "p95"]
    assert rounded(1234.56) == 1230.0


def test_what_needs_elements_is_refused():
    (series,) = collect(run_of([1.0, 2.0]).frames())
    with pytest.raises(ValueError, match="were not measured"):
        replay(gm.clip.value(0.1), series)
