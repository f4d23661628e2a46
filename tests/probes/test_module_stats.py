"""Which units of an output are active: against numpy, for every type and layout, with and without a count of zeros."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradmedic.probes.module_stats import active_units, measurable, unit_axis

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.float8_e5m2]


def expected(kind: str, tensor: torch.Tensor) -> list[bool]:
    wide = tensor.to(torch.complex128 if tensor.is_complex() else torch.float64).numpy()
    axis = unit_axis(kind, tensor.dim())
    return np.any(wide != 0, axis=tuple(d for d in range(tensor.dim()) if d != axis)).tolist()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("kind", "shape"), [("ReLU", (5, 4)), ("ReLU", (2, 3, 4)), ("Conv2d", (2, 4, 3, 3))])
def test_units_that_are_zero_everywhere_are_found(dtype, kind, shape):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(shape, generator=generator)
    units = values.movedim(unit_axis(kind, len(shape)), 0)
    units[0] = 0.0
    units[1] = -0.0
    units[2] = 0.0
    units[2].reshape(units.shape[1], -1)[0, 0] = -3.0
    tensor = values.to(dtype)
    active = active_units(kind, tensor)
    assert active.tolist() == expected(kind, tensor) == [False, False, True, True]


@given(
    numbers=st.lists(
        st.lists(st.sampled_from([0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-45]), min_size=3, max_size=3),
        min_size=1,
        max_size=6,
    ),
    transposed=st.booleans(),
)
def test_the_count_of_zeros_changes_nothing(numbers, transposed):
    tensor = torch.tensor(numbers)
    tensor = tensor.t().contiguous().t() if transposed else tensor
    zeros = int((tensor == 0).sum())
    assert active_units("ReLU", tensor).tolist() == active_units("ReLU", tensor, zeros).tolist()
    assert active_units("ReLU", tensor).tolist() == expected("ReLU", tensor)


def test_few_zeros_take_no_look_at_the_values():
    class Untouchable(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            name = getattr(func, "__name__", "")
            assert name not in ("amax", "amin", "ne", "detach"), name
            return super().__torch_function__(func, types, args, kwargs or {})

    tensor = torch.zeros(4, 8).as_subclass(Untouchable)
    assert active_units("ReLU", tensor, zeros=3).tolist() == [True] * 8  # a unit has four
    assert active_units("ReLU", torch.zeros(4, 8), zeros=4).tolist() == [False] * 8


def test_a_vector_has_no_units():
    assert active_units("ReLU", torch.ones(3)) is None


def test_a_batch_of_gradients_at_once_is_not_measured():
    seen = []
    given = torch.ones(3, requires_grad=True)
    made = given * 2
    made.register_hook(lambda gradient: seen.append(measurable(gradient)))
    torch.autograd.grad([made], [given], [torch.eye(3)], is_grads_batched=True, retain_graph=True)
    torch.autograd.grad([made], [given], [torch.ones(3)])
    assert seen == [False, True]
