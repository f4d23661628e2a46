"""Pictures smaller than their table, and curves of fewer points, keep what stands out."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.plot.cells import fitted
from gradmedic.plot.lines import broken_at_restarts, thinned
from gradmedic.plot.states import ABSENT, NOT_FINITE, NUMBER, ZERO
from gradmedic.plot.tables import Table

SIZES = st.integers(1, 40)


def made(values, states=None, steps=None, log=True):
    rows = values.shape[1]
    states = np.full(values.shape, NUMBER, np.uint8) if states is None else states
    names = tuple(f"r{at}" for at in range(rows))
    return Table(names, ("",) * rows, tuple((name,) for name in names), steps, values, states, log)


@settings(deadline=None, max_examples=50)
@given(SIZES, SIZES, SIZES, SIZES, st.integers(0, 2**31), st.data())
def test_a_spike_and_a_broken_cell_stay_in_their_stretch(steps, rows, columns, lines, seed, data):
    rng = np.random.default_rng(seed)
    values = 10 ** rng.normal(0, 0.1, (steps, rows))
    at = data.draw(st.integers(0, steps - 1)), data.draw(st.integers(0, rows - 1))
    values[at] = 1e6
    table = made(values, steps=np.arange(steps) * 3)
    cells = fitted(table, columns, lines)
    assert cells.values.shape == (min(rows, lines), min(steps, columns))
    where = (
        np.searchsorted(cells.row_edges, at[1], side="right") - 1,
        np.searchsorted(cells.step_edges, at[0] * 3, side="right") - 1,
    )
    if steps > 2:  # of two values the median is the mean of both
        assert cells.values[where] == 1e6
    table.states[at] = NOT_FINITE
    assert fitted(table, columns, lines).states[where] == NOT_FINITE


@settings(deadline=None)
@given(SIZES, SIZES)
def test_a_table_that_fits_is_drawn_as_it_is(steps, rows):
    values = np.random.default_rng(0).uniform(1, 2, (steps, rows))
    cells = fitted(made(values, steps=np.arange(steps)), 40, 40)
    np.testing.assert_array_equal(cells.values, values.T)
    np.testing.assert_array_equal(cells.step_edges, np.arange(steps + 1) - 0.5)


def test_a_number_comes_before_what_is_none():
    states = np.array([[ABSENT], [NUMBER], [ZERO], [ABSENT]], np.uint8)
    values = np.array([[np.nan], [3.0], [np.nan], [np.nan]])
    cells = fitted(made(values, states, np.arange(4)), 1, 1)
    assert cells.values.tolist() == [[3.0]]
    assert cells.states.tolist() == [[NUMBER]]


def test_columns_of_a_restart_stand_one_after_the_other():
    values = np.ones((4, 1))
    cells = fitted(made(values, steps=np.array([0, 1, 0, 1])), 10, 10)
    assert np.all(np.diff(cells.step_edges) > 0)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.floats(-1e9, 1e9) | st.just(float("nan")), min_size=1, max_size=300), st.integers(4, 60))
def test_a_thinned_curve_keeps_its_extremes_its_ends_and_its_gaps(values, points):
    steps, values = np.arange(float(len(values))), np.array(values)
    kept, shown = thinned(steps, values, points)
    assert len(kept) <= max(points, 8) + 4
    assert {kept[0], kept[-1]} == {steps[0], steps[-1]}
    assert np.isnan(shown).any() == np.isnan(values).any()
    if not np.isnan(values).all():
        assert np.nanmin(shown) == np.nanmin(values)
        assert np.nanmax(shown) == np.nanmax(values)


def test_a_restart_breaks_the_curve():
    steps, values = broken_at_restarts(np.array([0, 1, 2, 1, 2]), np.arange(5.0))
    assert np.flatnonzero(np.isnan(values)).tolist() == [3]
    assert len(steps) == len(values) == 6
