import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from payload_runs import strict, unpacked

from gradmedic.report.page.pack import pack_floats, pack_integers, unpack

SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5)


@settings(deadline=None, max_examples=80)
@given(hnp.arrays(np.float64, SHAPES))
def test_finite_stays_finite_and_nothing_else_becomes_zero(values):
    found = unpacked(strict(pack_floats(values)))
    assert found.shape == values.shape
    np.testing.assert_array_equal(np.isnan(found), np.isnan(values))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(values))
    np.testing.assert_array_equal(found == 0, values == 0)
    np.testing.assert_array_equal(np.sign(found), np.sign(values))
    ordinary = np.isfinite(values) & (np.abs(values) > 2e-38)
    np.testing.assert_allclose(found[ordinary], values[ordinary], rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(hnp.arrays(np.int64, SHAPES, elements=st.integers(-(2**40), 2**40)))
def test_whole_numbers(values):
    found = unpacked(strict(pack_integers(values)))
    np.testing.assert_array_equal(found, np.clip(values, -(2**31), 2**31 - 1))


def test_unpack_is_the_inverse_and_any_order_of_memory_will_do():
    values = np.arange(6.0).reshape(2, 3).T
    assert unpack(pack_floats(values)).tolist() == values.tolist()
    assert unpack(pack_floats(np.zeros((0, 4)))).shape == (0, 4)
