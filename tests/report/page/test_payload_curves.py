import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.report.page.curves import kept_points

NAN, INF = np.nan, np.inf


def noisy(count, seed, holes=0.0, broken=0.0):
    rng = np.random.default_rng(seed)
    values = rng.normal(0, 1, count)
    values[rng.random(count) < broken] = INF
    values[rng.random(count) < holes] = NAN
    return values


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 4000),
    st.integers(30, 400),
    st.integers(0, 10**6),
    st.floats(0, 1),
    st.floats(0, 0.3),
)
def test_bounded_and_without_losing_an_extreme(count, most, seed, holes, broken):
    values = noisy(count, seed, holes, broken)
    kept = kept_points(values, most=most)
    assert len(kept) <= most
    assert (np.diff(kept) > 0).all()
    known = np.flatnonzero(~np.isnan(values))
    if not len(known):
        assert not len(kept)
        return
    assert known[0] in kept
    assert known[-1] in kept
    finite = values[np.isfinite(values)]
    if len(finite):
        drawn = values[kept][np.isfinite(values[kept])]
        assert drawn.max() == finite.max()
        assert drawn.min() == finite.min()
    odd = np.flatnonzero(np.isinf(values))
    if len(odd) <= most // 4:
        assert np.isin(odd, kept).all()


def test_a_short_curve_stays_whole():
    values = noisy(500, 0)
    assert kept_points(values).tolist() == list(range(500))


def test_every_local_spike_of_a_long_curve_is_drawn():
    values = np.zeros(100_000)
    spikes = np.arange(500, 100_000, 1000)
    values[spikes] = 1.0
    assert np.isin(spikes, kept_points(values)).all()


def test_a_gap_breaks_the_line_and_a_rarely_logged_number_is_no_gap():
    values = np.ones(100)
    values[40:50] = NAN
    kept = kept_points(values)
    assert np.isnan(values[kept]).sum() == 1
    assert 40 in kept
    rare = np.full(100, NAN)
    rare[::10] = 1.0
    assert kept_points(rare).tolist() == list(range(0, 100, 10))


def test_what_is_not_recorded_at_all_has_no_points():
    assert kept_points(np.full(10, NAN)).tolist() == []
    assert kept_points([]).tolist() == []


def test_a_run_of_nothing_but_nan_losses_is_bounded():
    values = np.full(50_000, INF)
    kept = kept_points(values)
    assert kept[0] == 0
    assert kept[-1] == 49_999
    assert len(kept) <= 1100
