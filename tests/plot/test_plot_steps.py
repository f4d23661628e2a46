"""Which steps are shown: as slices of lists work, by step index."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.errors import InputError
from gradmedic.plot.steps import chosen_steps, spread

ENDS = st.none() | st.integers(-30, 30)


@settings(deadline=None)
@given(st.sets(st.integers(0, 25), min_size=1), ENDS, ENDS, st.none() | st.integers(1, 4))
def test_a_slice_picks_what_it_picks_of_a_list_of_all_steps(recorded, start, stop, stride):
    recorded = np.array(sorted(recorded))
    whole = list(range(recorded.max() + 1))[start:stop:stride]
    assert recorded[chosen_steps(recorded, slice(start, stop, stride))].tolist() == [
        step for step in recorded.tolist() if step in whole
    ]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(None, [0, 5, 10]), (5, [5]), (-1, [10]), (range(4, 11), [5, 10]), ([0, 10, 99], [0, 10]), (7, []), ([], [])],
)
def test_other_forms(steps, expected):
    recorded = np.array([0, 5, 10])
    assert recorded[chosen_steps(recorded, steps)].tolist() == expected


@pytest.mark.parametrize("steps", ["5", 2.5, [1.5], slice("a", None), object()])
def test_what_is_no_step_is_refused(steps):
    with pytest.raises(InputError, match="steps must be"):
        chosen_steps(np.array([0, 1]), steps)


def test_nothing_recorded_is_nothing_chosen():
    assert chosen_steps(np.zeros(0, np.int64), slice(3)).tolist() == []


@settings(deadline=None)
@given(st.integers(0, 500), st.integers(1, 50))
def test_spread_is_even_and_has_both_ends(count, wanted):
    places = spread(count, wanted)
    assert len(places) <= wanted
    assert places == sorted(set(places))
    if count and wanted > 1:
        assert (places[0], places[-1]) == (0, count - 1)
        assert max(np.diff(places), default=0) - min(np.diff(places), default=0) <= 1
