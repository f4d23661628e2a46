"""Losses and norms at the end of what doubles can hold are drawn without a warning, where they belong."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot

import gradmedic as gm
from gradmedic.frame import Frame, TensorTable
from gradmedic.plot.extremes import bear_extremes, log_limits
from gradmedic.record import MemoryRecorder

COURSES = {
    "both signs": lambda step: [1.0, -1.7e308, 1.7e308][step % 3],
    "stands still": lambda step: 1e308,
    "below zero": lambda step: -1e308,
    "grows": lambda step: 10.0 ** (300 * step / 11),
    "smallest": lambda step: 5e-324,
}


def run_of(course):
    recorder = MemoryRecorder(meta={})
    for step in range(12):
        loss = COURSES[course](step)
        norms = np.array([max(loss, 0.0), 1e-300, 1.0])
        columns = {"norm": norms, "max_abs": norms, "numel": np.full(3, 4), "status": np.zeros(3, dtype=int)}
        table = TensorTable(("a.weight", "b.weight", "c.weight"), columns)
        values = {"loss": loss, "grad_norm": float(norms[0]), "clipped": step == 3, "clip_threshold": 1.0}
        recorder.put(Frame(step, "adam", lr=0.1, tensors=table, **values), keep=True)
    return recorder.run


@pytest.mark.parametrize("course", COURSES)
def test_a_loss_is_drawn(course):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = gm.plot.loss(run_of(course), findings=[])
        loss.figure.canvas.draw()
    low, high = loss.get_ylim()
    drawn = loss.lines[0].get_ydata()
    assert low <= np.nanmin(drawn) <= np.nanmax(drawn) <= high
    assert np.array_equal(drawn, [COURSES[course](step) for step in range(12)])
    assert all(label.get_text() for label in loss.get_yticklabels())
    pyplot.close("all")


@pytest.mark.parametrize("course", ["stands still", "both signs"])
def test_norms_are_drawn(course):
    run = run_of(course)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for draw in (gm.plot.clip, gm.plot.gradient_flow, gm.plot.evolution, gm.plot.heatmap):
            ax = draw(run)
            ax.figure.canvas.draw()
            assert all(map(math.isfinite, ax.get_ylim()))
    pyplot.close("all")


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=6), st.booleans())
def test_limits_are_finite_and_hold_what_is_drawn(values, log):
    figure, ax = pyplot.subplots()
    drawn = np.array(values)
    if log and (drawn > 0).any():
        ax.set_yscale("log")
    before = ax.get_yscale()
    bear_extremes(ax, [drawn])
    low, high = ax.get_ylim()
    assert math.isfinite(low)
    assert math.isfinite(high)
    if ax.get_yscale() != before:
        assert low <= drawn.min() <= drawn.max() <= high
    if np.abs(drawn).max() < 1e100 and before == "linear":
        assert ax.get_autoscaley_on()  # ordinary values are left to matplotlib
    pyplot.close(figure)


@given(st.lists(st.floats(0, allow_infinity=False), min_size=1).filter(any))
def test_log_limits_are_powers_that_exist(values):
    low, high = log_limits(np.array(values))
    assert 0 < low < high <= np.finfo(float).max
    assert high >= max(values)
