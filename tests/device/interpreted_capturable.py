"""The capturable entry over the kernels, and the memory that a recorded step takes, in Triton's interpreter.

Run by test_capturable.py in a process of its own.
"""

from __future__ import annotations

import math

import torch
from held_bytes import HeldBytes

from gradmedic.host_copies import HostCopies
from gradmedic.probes import parcel
from gradmedic.stats import CapturableStats, device, gradient_stats, triton_tables

sent = []
build = triton_tables.build
triton_tables.build = lambda *arguments: sent.append(1) or build(*arguments)

tensors = [torch.randn(3000), torch.randn(66_001).half(), torch.randn(5)]
stats = CapturableStats(tensors, histogram=True, every=2)
assert stats._kernels is not None
for call in range(4):
    tensors[0].fill_(call + 1.0)
    stats.record()
    shown = float(stats.table.max_abs[0])
    assert shown == call - call % 2 + 1.0, (call, shown)
    if call % 2 == 0:
        expected = gradient_stats(tensors, histogram=True, backend="reference")
        assert torch.equal(stats.table.counts, expected.counts)
        assert torch.equal(stats.table.log2_hist, expected.log2_hist)
        torch.testing.assert_close(stats.table.moments, expected.moments, rtol=1e-5, atol=1e-6)
# Where it is not due, no element is read: not even one of an address that is none.
stats._kernels._tables.addresses.fill_(0)
stats.every.fill_(math.floor(1e9))
stats.calls.fill_(3)
stats.record()
print("calls", int(stats.calls), "sent", len(sent))


def peak(chosen: list[torch.Tensor], histogram: bool) -> int:
    """Return the bytes that a measurement and the vector that brings it home take at most."""
    ring = HostCopies()
    ring.needed = lambda tensor: True  # as on a device
    with HeldBytes(chosen) as bytes_of:
        table = device.measure(chosen, histogram)
        collected = parcel.Parcel()
        for each in (table.moments, table.counts, table.log2_hist):
            collected.add(each)
        collected.send(ring)
    return bytes_of.peak


parcel._SMALL = 1 << 8  # of as many as this really is, the interpreter would have long
pairs = [torch.ones(7), torch.ones(5).half()]
for histogram, times in ((False, 2), (True, 4)):  # with so many tensors the bins are no small tensor
    few, more = peak(pairs * times, histogram), peak(pairs * (times + 1), histogram)
    print("bytes", round((more - few) / 2))
