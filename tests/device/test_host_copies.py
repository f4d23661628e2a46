"""The ring of pinned memory: nothing is lost, nothing is overwritten, and nobody waits for more than must be."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from late_marks import late_device

from gradmedic import host_copies
from gradmedic.host_copies import HostCopies


def vector(size: int, first: float = 0.0) -> torch.Tensor:
    return torch.arange(size, dtype=torch.float64) + first


def test_a_copy_is_not_there_before_its_event():
    with late_device() as device:
        ring = HostCopies()
        flat = vector(5)
        copy = ring.send(flat)
        flat.fill_(-1.0)  # the next step uses the memory again
        assert not copy.arrived
        assert ring.waits == device.waits == 0
        device.go_on()
        assert copy.arrived
        assert copy.take().tolist() == [0, 1, 2, 3, 4]
        assert ring.waits == device.waits == 0


def test_taking_too_early_waits_and_is_counted():
    with late_device() as device:
        ring = HostCopies()
        first, second = ring.send(vector(3)), ring.send(vector(3, 10.0))
        assert second.take().tolist() == [10, 11, 12]
        assert (ring.waits, device.waits) == (1, 1)
        assert first.take().tolist() == [0, 1, 2]  # the stream was past it as well
        assert ring.waits == 1


def test_once_training_is_over_waiting_holds_up_nothing():
    with late_device() as device:
        ring = HostCopies()
        copy = ring.send(vector(3))
        ring.over = True
        assert copy.take().tolist() == [0, 1, 2]
        assert (ring.waits, device.waits) == (0, 1)


def test_memory_is_used_again():
    with late_device(behind=2), pytest.MonkeyPatch.context() as patched:
        made: list[int] = []
        patched.setattr(host_copies, "_pinned", lambda size: made.append(size) or torch.empty(size, dtype=torch.uint8))
        ring = HostCopies()
        under_way, arrived = deque(), []
        for step in range(50):
            under_way.append(ring.send(vector(700, step)))
            while under_way[0].arrived:
                arrived.append(under_way.popleft().take()[0])
    assert arrived == list(range(48))
    assert len(made) <= 4
    assert ring.waits == 0


def test_a_full_ring_waits_for_the_oldest_copy_alone_and_keeps_it():
    with late_device() as device:
        ring = HostCopies(most_bytes=3 * 4096)
        copies = [ring.send(vector(512, step)) for step in range(3)]  # 4 KiB each
        assert (device.waits, ring.waits) == (0, 0)
        copies.append(ring.send(vector(512, 3)))
        assert (device.waits, ring.waits) == (1, 1)
        assert [copy.arrived for copy in copies] == [True, False, False, False]
        assert [copy.take()[0] for copy in copies] == [0, 1, 2, 3]


def test_what_is_larger_than_the_ring_gets_what_it_needs():
    with late_device() as device:
        ring = HostCopies(most_bytes=4096)
        small = ring.send(vector(8))
        large = ring.send(vector(5000, 1.0))
        assert device.waits == 1  # memory of the small one was given back first
        device.go_on()
        assert large.take()[-1] == 5000
        assert small.take().tolist() == vector(8).tolist()


def test_copies_that_nobody_takes_do_not_fill_the_ring_for_ever():
    with late_device(behind=1) as device:
        ring = HostCopies(most_bytes=2 * 4096)
        for step in range(20):
            ring.send(vector(512, step))
        assert ring.send(vector(512, 99)).take()[0] == 99
        assert device.copies == 21


def test_where_no_memory_can_be_pinned_copies_are_waited_for_and_it_is_said_once(caplog):
    with late_device(), pytest.MonkeyPatch.context() as patched:

        def refuse(size: int) -> torch.Tensor:
            raise RuntimeError("CUDA error: out of memory")

        patched.setattr(host_copies, "_pinned", refuse)
        ring = HostCopies()
        for step in range(3):
            copy = ring.send(vector(4, step))
            assert copy.arrived
            assert copy.take()[0] == step
    assert caplog.text.count("no pinned memory") == 1


def test_the_host_itself_needs_no_ring():
    ring = HostCopies()
    copy = ring.send(vector(4))
    assert copy.arrived
    assert copy.take().tolist() == [0, 1, 2, 3]
    assert ring.waits == 0


def test_a_device_that_has_failed_says_so_to_whoever_asks():
    with late_device() as device:
        copy = HostCopies().send(vector(4))
        device.broken = True
        with pytest.raises(RuntimeError, match="illegal memory access"):
            _ = copy.arrived


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 1500), st.sampled_from(["go on", "take", "nothing"])), min_size=1, max_size=40),
    st.sampled_from([4096, 3 * 4096, 1 << 20]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_everything_arrives_as_it_was_sent(plan, most_bytes, dtype):
    """Whatever sizes come in whatever order, and however far the device is behind."""
    with late_device() as device:
        ring = HostCopies(most_bytes)
        sent, under_way = [], []
        for at, (size, then) in enumerate(plan):
            flat = vector(size, at).to(dtype)
            sent.append(flat.double().numpy().copy())
            under_way.append(ring.send(flat))
            flat.fill_(-7.0)
            if then == "go on":
                device.go_on()
            elif then == "take":
                np.testing.assert_array_equal(under_way[at // 2].take(), sent[at // 2])
        for copy, values in zip(under_way, sent, strict=True):
            np.testing.assert_array_equal(copy.take(), values)
