import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.report.page.buckets import bucketed, columns_of

NAN, INF = np.nan, np.inf


def reference(values, columns, log):
    """One value for each bucket and row, found with plain loops."""
    scale = np.array(
        [[(np.log10(abs(v)) if v else -400.0) if log and np.isfinite(v) else v for v in row] for row in values]
    ).reshape(values.shape)
    made = np.full((values.shape[1], len(columns.starts)), NAN)
    stops = [*columns.starts[1:], len(values)]
    for at in range(values.shape[1]):
        finite = sorted(v for v in scale[:, at] if np.isfinite(v))
        middle = finite[(len(finite) - 1) // 2] if finite else 0.0
        for column, (start, stop) in enumerate(zip(columns.starts, stops, strict=True)):
            best = -1.0
            for step in range(start, stop):
                value = values[step, at]
                distance = -1.0 if np.isnan(value) else INF if np.isinf(value) else abs(scale[step, at] - middle)
                if distance > best:
                    best, made[at, column] = distance, value
    return made


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 60), st.integers(1, 4), st.integers(1, 70), st.booleans(), st.integers(0, 10**6))
def test_each_bucket_shows_what_stands_out(steps, rows, most, log, seed):
    rng = np.random.default_rng(seed)
    values = np.exp(rng.normal(0, 5, (steps, rows)))
    for special in (NAN, INF, 0.0):
        values[rng.random(values.shape) < 0.1] = special
    columns = columns_of(np.arange(steps) * 3, np.zeros(steps), most)
    assert len(columns.starts) <= most
    np.testing.assert_array_equal(bucketed(values, columns, log=log), reference(values, columns, log))


def test_a_single_spike_among_thousands_of_steps_is_seen():
    values = np.ones((10_000, 2))
    values[7_777, 1] = 50.0
    values[1_234, 0] = 1e-9
    columns = columns_of(np.arange(10_000), np.zeros(10_000), 100)
    found = bucketed(values, columns, log=True)
    assert found[1].max() == 50.0
    assert found[0].min() == 1e-9
    assert (found != 1.0).sum() == 2


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=5), st.integers(1, 60))
def test_columns_cover_every_step_once_and_never_span_a_restart(lengths, most):
    parts = np.repeat(np.arange(len(lengths)), lengths)
    steps = np.concatenate([np.arange(length) for length in lengths])
    columns = columns_of(steps, parts, most)
    assert len(columns.starts) <= max(most, len(lengths))
    stops = np.append(columns.starts[1:], len(steps))
    assert columns.starts[0] == 0
    assert (stops > columns.starts).all()
    for start, stop, first, last in zip(columns.starts, stops, columns.first, columns.last, strict=True):
        assert len(set(parts[start:stop])) == 1
        assert (steps[start], steps[stop - 1]) == (first, last)


def test_no_steps():
    columns = columns_of([], [], 10)
    assert len(columns.starts) == 0
    assert bucketed(np.zeros((0, 0)), columns, log=True).shape == (0, 0)
