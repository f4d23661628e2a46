import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.report.views import LayerRow, TensorRow, joint_norms, layer_rows


def test_layers_in_the_order_of_their_first_tensors():
    rows = [TensorRow("b.w", "b", "Linear"), TensorRow("a.w", "a", "Norm"), TensorRow("b.bias", "b"), TensorRow("bare")]
    assert layer_rows(rows) == [
        LayerRow("b", "Linear", (0, 2)),
        LayerRow("a", "Norm", (1,)),
        LayerRow("bare", "", (3,)),
    ]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=6))
def test_a_joint_norm_is_that_of_hypot(norms):
    (joint,) = joint_norms([norms], [range(len(norms))])[0]
    assert math.isclose(joint, math.hypot(*norms), rel_tol=1e-12, abs_tol=1e-320)


def test_extremes_neither_overflow_nor_vanish():
    found = joint_norms([[3e200, 4e200], [3e-200, 4e-200], [1.7e308, 1e308]], [(0, 1)])[:, 0]
    np.testing.assert_allclose(found, [5e200, 5e-200, np.inf], rtol=1e-15)


def test_unknown_and_non_finite_norms():
    inf, nan = math.inf, math.nan
    found = joint_norms([[nan, 2.0], [nan, nan], [inf, nan], [0.0, 0.0]], [(0, 1), (0,), ()])
    np.testing.assert_array_equal(found, [[2.0, nan, nan], [nan, nan, nan], [inf, inf, nan], [0.0, 0.0, nan]])
