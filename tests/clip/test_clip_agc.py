"""AGC: norms by output unit for every kind of layer (R64)."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from clip_loop import NAN, Treated, bits, treated
from clip_reference import assert_close, dense64
from torch import nn

import gradmedic as gm
from gradmedic.clip import agc, chain, norm

RATIO, EPS = 0.02, 1e-3


def by_hand(weight: np.ndarray, gradient: np.ndarray, axis: int | None) -> np.ndarray:
    """Equation 3 of arXiv:2102.06171, unit by unit."""
    if axis is None:
        limit = RATIO * max(np.linalg.norm(weight), EPS)
        return gradient * (limit / np.linalg.norm(gradient) if np.linalg.norm(gradient) > limit else 1.0)
    result = np.moveaxis(gradient.copy(), axis, 0)
    for unit, (w, g) in enumerate(zip(np.moveaxis(weight, axis, 0), result.copy(), strict=True)):
        result[unit] = by_hand(w, g, None)
    return np.moveaxis(result, 0, axis)


torch.manual_seed(0)
LAYERS = {
    "linear (4, 3)": (nn.Linear(3, 4), {"weight": 0, "bias": None}),
    "conv1d": (nn.Conv1d(3, 4, 2), {"weight": 0, "bias": None}),
    "conv2d": (nn.Conv2d(3, 4, 2), {"weight": 0, "bias": None}),
    "conv3d": (nn.Conv3d(2, 3, 2), {"weight": 0, "bias": None}),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4), {"weight": 0, "bias": None}),
    "transposed": (nn.ConvTranspose2d(3, 4, 2), {"weight": 1, "bias": None}),
    "embedding": (nn.Embedding(6, 3), {"weight": 0}),
    "fused qkv": (nn.MultiheadAttention(4, 2, bias=False), {"in_proj_weight": 0, "out_proj.weight": 0}),
    "lstm": (nn.LSTM(3, 2), {"weight_ih_l0": 0, "weight_hh_l0": 0, "bias_ih_l0": None, "bias_hh_l0": None}),
    "gain": (nn.LayerNorm(5), {"weight": None, "bias": None}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_every_kind_of_layer(name):
    """Clipped by the right axis; zero weights count as 1e-3; units below their limit keep their bits."""
    module, axes = LAYERS[name]
    torch.manual_seed(1)
    sizes = torch.logspace(-5, 0, 12)
    given = [torch.randn_like(p) * sizes[at % 12] for at, p in enumerate(module.parameters())]
    for gradient in given:
        if gradient.dim() > 1:  # units of very different sizes, so that some are clipped and some are not
            gradient[0] *= 1e-4
            gradient[1] *= 1e5
    loop = Treated(agc(RATIO, EPS, exclude=[]), module)
    after = loop.step(given)
    changed = kept = 0
    for (name, weight), one, two in zip(module.named_parameters(), given, after, strict=True):
        array, axis = dense64(one), axes[name]
        expected = by_hand(dense64(weight), array, axis)
        assert_close([dense64(two)], [expected], rtol=1e-5, atol=0)
        for unit in range(array.shape[axis] if axis is not None else 1):
            where = (slice(None),) * (axis or 0) + (unit,) if axis is not None else ...
            if np.array_equal(expected[where], array[where]):
                assert np.array_equal(dense64(two)[where], array[where])
                kept += 1
            else:
                changed += 1
    assert changed
    assert bool(loop.decision.clipped)
    assert kept or name == "gain"


def test_the_known_values():
    """W = [[3, 4], [0, 0]], G = [[.6, .8], [.001, 0]], ratio .01: [.03, .04] and [1e-5, 0]."""
    weight, gradient = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[0.6, 0.8], [0.001, 0.0]])
    (after,) = treated(agc(0.01, exclude=[]), [gradient], [weight])
    assert after.flatten().tolist() == pytest.approx([0.03, 0.04, 1e-5, 0.0], rel=1e-6)


def test_scalars_and_zero_weights_and_zero_gradients():
    weights = [torch.tensor(2.0), torch.zeros(3, 2), torch.zeros(4)]
    given = [torch.tensor(-1.0), torch.zeros(3, 2), torch.full((4,), 0.5)]
    scalar, matrix, vector = treated(agc(0.1, exclude=[]), given, weights)
    assert scalar.item() == pytest.approx(-0.2)
    assert not matrix.any()
    assert vector.norm().item() == pytest.approx(1e-4)


def test_a_sick_unit_is_left_alone_and_the_others_are_clipped():
    given = torch.tensor([[3.0, NAN], [3.0, 4.0], [math.inf, 0.0]])
    (after,) = treated(agc(0.1, exclude=[]), [given], [torch.ones(3, 2)])
    assert bits(after[0]) == bits(given[0])
    assert bits(after[2]) == bits(given[2])
    assert after[1].norm().item() == pytest.approx(0.1 * math.sqrt(2), rel=1e-6)


def test_rows_of_a_sparse_embedding():
    """Rows that were looked up twice count as their sum; the limit is that of their own row of weights."""
    weight = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 4.0], [1.0, 1.0]])
    sparse = torch.sparse_coo_tensor([[2, 1, 2]], [[3.0, 0.0], [0.0, 1e-3], [0.0, 4.0]], (4, 2), check_invariants=True)
    (after,) = treated(agc(0.1, exclude=[]), [sparse], [weight])
    assert after.is_sparse
    assert_close([dense64(after)], [np.array([[0, 0], [0, 1e-3], [0.3, 0.4], [0, 0]])], rtol=1e-6)


def test_complex_weights():
    weight = torch.tensor([[3 + 4j, 0]], dtype=torch.complex64)
    (after,) = treated(agc(0.1, exclude=[]), [torch.tensor([[3j, 4]], dtype=torch.complex64)], [weight])
    assert after.abs().flatten().tolist() == pytest.approx([0.3, 0.4], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(dtype):
    """Norms are float64: an fp16 square of 300 would be infinite."""
    given, weight = torch.full((2, 4), 300.0, dtype=dtype), torch.full((2, 4), 100.0, dtype=dtype)
    (after,) = treated(agc(0.5, exclude=[]), [given], [weight])
    assert dense64(after) == pytest.approx(np.full((2, 4), 50.0), rel=torch.finfo(dtype).eps)


def test_huge_gradients_do_not_overflow():
    (after,) = treated(agc(0.1, exclude=[]), [torch.full((2, 3), 1e30)], [torch.ones(2, 3)])
    assert after.norm(dim=1).tolist() == pytest.approx([0.1 * math.sqrt(3)] * 2, rel=1e-5)


def test_the_last_linear_map_is_left_out_as_the_paper_has_it():
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    given = [torch.full_like(p, 9.0) for p in model.parameters()]
    after = Treated(agc(), model).step(given)
    assert [bits(a) == bits(g) for a, g in zip(after, given, strict=True)] == [False, False, True, True]
    after = Treated(agc(exclude=["0", "*.bias"]), model).step(given)
    assert [bits(a) == bits(g) for a, g in zip(after, given, strict=True)] == [True, True, False, True]


def test_axes_given_by_hand():
    """Experts stacked as (experts, in, out): a pattern says where the units are."""
    given, weight = torch.randn(3, 4, 5), torch.rand(3, 4, 5)
    for axis in (None, 0, 1, 2):
        (after,) = treated(agc(RATIO, EPS, exclude=[], unit_dims={"p*": axis}), [given], [weight])
        assert_close([dense64(after)], [by_hand(dense64(weight), dense64(given), axis)], rtol=1e-5)


def test_an_axis_that_is_not_there():
    with pytest.raises(
        gm.InputError, match=r"unit_dims\['p0'\]: expected an axis of p0, whose shape is \(2, 3\), got 2"
    ):
        treated(agc(unit_dims={"p0": 2}), [torch.zeros(2, 3)])
    with pytest.raises(gm.InputError, match=r"exclude: expected a list"):
        agc(exclude="head")


def test_its_parts_in_a_chain_see_the_norms_it_leaves():
    weights = [torch.ones(2, 3), torch.ones(4)]
    given = [torch.full((2, 3), 5.0), torch.full((4,), 5.0)]
    once = treated(agc(0.1, exclude=[]), given, weights)
    both = treated(chain(agc(0.1, exclude=[]), norm(0.05)), given, weights)
    total = math.sqrt(sum(dense64(g).ravel() @ dense64(g).ravel() for g in once))
    assert_close([dense64(g) for g in both], [dense64(g) * 0.05 / total for g in once], rtol=1e-4)


def test_nothing_is_remembered():
    loop = Treated(agc(), [torch.ones(2, 2)])
    loop.step([torch.ones(2, 2)])
    assert (loop.state.shared, loop.state.by_tensor) == ({}, {})
