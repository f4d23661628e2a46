"""Parcels: any mixture of types, places and sizes comes out as it went in; without memory, piece by piece."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from late_marks import late_device

import gradmedic as gm
from gradmedic.host_copies import HostCopies
from gradmedic.probes import parcel as parcels
from gradmedic.probes.parcel import Parcel

DTYPES = (torch.float64, torch.float32, torch.int64, torch.bool, torch.float16)


def filled(size: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    values = torch.randint(-50, 50, (size,), generator=torch.Generator().manual_seed(seed))
    return values.to(dtype) if size != 1 else values.to(dtype).reshape(())


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 1, 7, 5000]), st.sampled_from(DTYPES)), max_size=12))
def test_everything_comes_out_in_its_place(kinds):
    tensors = [filled(size, dtype, at) for at, (size, dtype) in enumerate(kinds)]
    expected = [tensor.double().numpy().copy() for tensor in tensors]
    with late_device() as device:
        parcel, ring = Parcel(), HostCopies()
        places = [parcel.add(tensor) for tensor in tensors]
        assert parcel.add(None) == -1
        parcel.send(ring)
        assert device.copies == (sum(tensor.numel() for tensor in tensors) > 0)
        for tensor in tensors:
            tensor.zero_()  # the next step writes over what has been sent off
        device.go_on()
        assert parcel.arrived
        parcel.open()
    assert ring.waits == 0
    assert parcel.get(-1) is None
    for place, values in zip(places, expected, strict=True):
        np.testing.assert_array_equal(parcel.get(place), values)
        assert parcel.get(place).shape == values.shape


def test_without_memory_for_the_vector_its_parts_are_read_one_by_one(monkeypatch):
    def refuse(tensors, home):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(parcels, "_joined", refuse)
    with late_device() as device:
        parcel, ring = Parcel(), HostCopies()
        places = [parcel.add(torch.arange(3)), parcel.add(torch.tensor(2.5))]
        parcel.send(ring)
        parcel.open()
        assert (device.copies, ring.waits) == (0, 1)
    assert parcel.get(places[0]).tolist() == [0, 1, 2]
    assert parcel.number(places[1]) == 2.5


def test_a_callback_is_told_once_of_a_halt_that_was_decided_early():
    """The script's own clip has our transform decide before the step, which must not say the same again."""
    told: list[str] = []
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = gm.guard.breaker(1e-9, on_trip=told.append)
    with gm.watch(model, optimizer, transform=guard, strict=True):
        for step in range(3):
            model(torch.ones(4, 3)).square().sum().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            assert len(told) == step + 1


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_what_holds_training_up_is_counted(momentum):
    """SGD with momentum cannot skip its first step by itself, and an optimizer that is not fused never can."""
    counts = []
    for fused in (True, False):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum, fused=fused)
        with gm.watch(model, optimizer, backend="torch", transform=gm.guard.skip_nonfinite(), strict=True) as monitor:
            for _ in range(4):
                optimizer.zero_grad()
                model(torch.ones(4, 3)).square().sum().backward()
                optimizer.step()
        counts.append(monitor.overhead.host_syncs)
    assert counts == [int(momentum > 0), 4]
