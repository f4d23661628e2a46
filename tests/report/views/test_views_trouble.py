import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.report.views import Grid, TensorRow, trouble_of


def grid(values, names):
    values = np.asarray(values, dtype=float)
    steps = np.arange(len(values))
    return Grid("norm", "adam", steps, np.zeros_like(steps), tuple(names), values)


ROWS = [TensorRow(f"l{at}.weight", f"l{at}", "Linear") for at in range(6)]
NAMES = [row.name for row in ROWS]


def test_a_run_whose_gradients_all_shrink_is_fine():
    norms = np.geomspace(1.0, 1e-4, 200)[:, None] * np.ones(6)
    assert trouble_of(ROWS, grid(norms, NAMES)).tolist() == [0.0] * 6


def test_one_that_collapses_and_one_that_explodes_come_first():
    norms = np.ones((200, 6))
    norms[:, 2] = np.geomspace(1.0, 1e-6, 200)
    norms[:, 4] = np.geomspace(1.0, 1e3, 200)
    trouble = trouble_of(ROWS, grid(norms, NAMES))
    assert set(np.flatnonzero(trouble)) == {2, 4}


def test_a_gradient_that_has_become_zero_and_one_that_began_as_zero():
    norms = np.ones((200, 6))
    norms[120:, 1] = 0.0
    norms[:120, 4] = 0.0
    assert np.flatnonzero(trouble_of(ROWS, grid(norms, NAMES))).tolist() == [1]


def test_when_all_explode_all_are_in_trouble():
    norms = np.geomspace(1.0, 1e5, 200)[:, None] * np.ones(6)
    assert (trouble_of(ROWS, grid(norms, NAMES)) > 0).all()


def test_what_is_not_finite_is_worst():
    rows = [
        TensorRow("a", state="non-finite"),
        TensorRow("b", state="zero"),
        TensorRow("c", state="unused"),
        TensorRow("d"),
    ]
    trouble = trouble_of(rows, findings=[("critical", ["b", "d"])])
    assert trouble.argmax() == 0
    assert (np.diff(np.sort(trouble)) >= 0).all()
    assert trouble_of([TensorRow("f", state="frozen")], findings=[("error", ["f"])]).tolist() == [0.0]


def test_findings_count_by_severity_and_place():
    trouble = trouble_of(ROWS, findings=[("warning", ["l1.weight"]), ("error", ["l2"]), ("info", ["nobody"])])
    assert trouble.tolist() == [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_mostly_zero_gradients_count():
    shares = np.zeros((40, 6))
    shares[:, 3] = 1.0
    shares[:, 5] = 0.5
    trouble = trouble_of(ROWS, None, grid(shares, NAMES))
    assert np.flatnonzero(trouble).tolist() == [3]


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 12), st.integers(0, 10**6), st.floats(0, 1))
def test_always_a_finite_number_that_is_not_negative(steps, seed, holes):
    rng = np.random.default_rng(seed)
    norms = np.exp(rng.normal(0, 20, (steps, 6)))
    norms[rng.random(norms.shape) < holes] = np.nan
    norms[rng.random(norms.shape) < 0.1] = np.inf
    norms[rng.random(norms.shape) < 0.1] = 0.0
    trouble = trouble_of(ROWS, grid(norms, NAMES), grid(rng.random((steps, 6)), NAMES))
    assert np.isfinite(trouble).all()
    assert (trouble >= 0).all()
