"""The device path: no host synchronisation, launches that do not grow with the number of tensors, bounded memory."""

from __future__ import annotations

import weakref

import pytest
import torch
from stats_cases import assert_close
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from gradmedic.stats import gradient_stats, merge, norms, torch_backend, torch_chunks

#: Operations that make the host wait for a device, or whose output size depends on data.
WAITING = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal", "masked_select", "unique", "bincount"}


class Watch(TorchDispatchMode):
    """Records the launches, those among them that wait, and the most bytes of results alive at a time."""

    def __init__(self, inputs=()) -> None:
        super().__init__()
        self.inputs = {x.untyped_storage().data_ptr() for x in inputs}
        self.launches, self.waiting = 0, []
        self.alive: dict[int, tuple[int, int]] = {}
        self.held, self.peak = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        by_mask = name == "index" and any(t is not None and t.dtype == torch.bool for t in args[1])
        if name in WAITING or by_mask:
            self.waiting.append(name)
        if not func.is_view and name != "detach":
            self.launches += 1
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._hold(tensor)
        return result

    def _hold(self, tensor):
        storage = tensor.untyped_storage()
        key, size = storage.data_ptr(), storage.nbytes()
        if key in self.inputs:
            return
        before, holders = self.alive.get(key, (0, 0))
        self.alive[key] = (size, holders + 1)
        self.held += size - before
        weakref.finalize(tensor, self._drop, key)
        self.peak = max(self.peak, self.held)

    def _drop(self, key):
        size, holders = self.alive[key]
        if holders == 1:
            del self.alive[key]
            self.held -= size
        else:
            self.alive[key] = (size, holders - 1)


def watch(tensors, **arguments) -> Watch:
    with Watch(tensors) as seen:
        gradient_stats(tensors, backend="torch", **arguments)
        norms(tensors, backend="torch")
    return seen


def test_the_host_never_waits():
    torch.manual_seed(0)
    xs = [torch.randn(5), torch.randn(300, 500)[:, ::2], torch.randn(9).half(), torch.ones(2, dtype=torch.complex64)]
    xs += [torch.tensor([float("nan"), 1.0]), torch.zeros(0), torch.randn(3, 3).double(), torch.randn(600_000)]
    with Watch() as seen:
        table = gradient_stats(xs, histogram=True, backend="torch")
        joined = merge(table, table.scaled(torch.tensor(0.5)))
        joined.total_norm(), joined.nonfinite(), joined.packed(), norms(xs, backend="torch")
    assert seen.launches > 0
    assert seen.waiting == []


def test_the_watch_sees_waiting():
    with Watch() as seen:
        x = torch.tensor([1.0, 0.0])
        x.sum().item(), x[x > 0], bool(x[0])
    assert {"_local_scalar_dense", "index"} <= set(seen.waiting)


@pytest.mark.parametrize("histogram", [False, True])
def test_launches_do_not_grow_with_the_number_of_tensors(histogram):
    few = watch([torch.randn(100) for _ in range(3)], histogram=histogram)
    many = watch([torch.randn(100) for _ in range(1000)], histogram=histogram)
    assert many.launches - few.launches <= 2
    assert many.launches < 250


def test_launches_grow_with_the_number_of_groups():
    one = watch([torch.randn(100) for _ in range(8)]).launches
    four = watch([torch.randn(100).to(t) for t in (torch.float32, torch.float64, torch.float16, torch.bfloat16)] * 2)
    assert four.launches <= 4 * one + 20  # copies by type, and the joining of groups


def transformer(width=256, layers=12, vocabulary=4096, positions=128) -> list[tuple[int, ...]]:
    """Return the shapes of the 149 parameters of a decoder, 11.6M elements."""
    block = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,)]
    block += [(4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    return [(vocabulary, width), (positions, width), *block * layers, (width,), (width,), (vocabulary, width)]


@pytest.fixture
def as_on_an_accelerator(monkeypatch):
    """Have chunks of the size that other devices get; on the CPU they are smaller."""
    monkeypatch.setattr(torch_chunks, "_CPU_BYTES", torch_chunks._CHUNK_BYTES)


def seen_by(function, xs) -> Watch:
    with Watch(xs) as seen:
        function(xs)
    assert seen.waiting == []
    return seen


def statistics(xs):
    return torch_backend.measure(xs, histogram=False)


def statistics_with_histogram(xs):
    return torch_backend.measure(xs, histogram=True)


@pytest.mark.usefixtures("as_on_an_accelerator")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shapes", [[(100,)] * 10, [(100,)] * 150, [(100,)] * 2000, transformer()])
def test_a_group_below_64_mib_takes_few_launches(shapes, dtype):
    xs = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    assert seen_by(statistics, xs).launches <= 200
    assert seen_by(statistics_with_histogram, xs).launches <= 250
    assert seen_by(torch_backend.norms, xs).launches <= 100


@pytest.mark.usefixtures("as_on_an_accelerator")
def test_launches_grow_with_bytes_alone():
    half = [torch.zeros(1 << 22)] * 2
    one, two, other = (
        seen_by(statistics, xs).launches for xs in (half, half * 2, [*half, *[torch.zeros(1 << 12)] * (1 << 11)])
    )
    assert one < two <= one + 64
    assert other == two


@pytest.mark.usefixtures("as_on_an_accelerator")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.complex128])
@pytest.mark.parametrize("function", [statistics, statistics_with_histogram, torch_backend.norms])
def test_temporaries_on_an_accelerator_are_bounded(dtype, function):
    x = torch.zeros(2000, 3000, dtype=dtype)
    assert seen_by(function, [x[:, ::2], x[:1000], *x[:5]]).peak <= 64 << 20


@pytest.mark.usefixtures("as_on_an_accelerator")
def test_temporaries_of_very_many_tensors_are_bounded_beside_the_table():
    xs = [torch.zeros(())] * 30_000
    assert seen_by(statistics, xs).peak <= 64 << 20
    assert seen_by(statistics_with_histogram, xs).peak <= (64 << 20) + 30_000 * 64 * 8


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_temporaries_are_bounded(dtype):
    xs = [torch.zeros(2_500_000, dtype=dtype), torch.zeros(2200, 2000, dtype=dtype)[:, ::2]]
    assert watch(xs, histogram=True).peak <= 64 << 20


def test_results_do_not_depend_on_the_order_of_the_tensors():
    torch.manual_seed(0)
    xs = [torch.randn(n).to(t) for n in (3, 2000, 50, 300_000) for t in (torch.float32, torch.float64)]
    table = gradient_stats(xs, histogram=True, backend="torch")
    back = gradient_stats(xs[::-1], histogram=True, backend="torch")
    torch.testing.assert_close(back.counts.flip(1), table.counts, rtol=0, atol=0)
    torch.testing.assert_close(back.moments.flip(1), table.moments, rtol=1e-6, atol=0)
    assert torch.equal(back.log2_hist.flip(0), table.log2_hist)


def test_runs_are_bit_equal():
    torch.manual_seed(0)
    xs = [torch.randn(n) for n in (10, 5000, 700_000)]
    first, second = (gradient_stats(xs, histogram=True, backend="torch") for _ in range(2))
    assert_close(first, second, 0)


def test_several_devices_meet_on_the_accelerator_without_reading_it():
    with FakeTensorMode():  # raises where data of a tensor would be needed on the host
        xs = [torch.empty(10), torch.empty(4000, device="cuda"), torch.empty(7, dtype=torch.float16, device="cuda")]
        table = torch_backend.measure(xs, histogram=True)
        assert table.moments.device.type == table.counts.device.type == table.log2_hist.device.type == "cuda"
        assert table.moments.shape == (6, 3)
        assert torch_backend.norms(xs).device.type == "cuda"
        assert table.total_norm().device.type == "cuda"
        assert table.scaled(torch.ones((), device="cuda")).moments.device.type == "cuda"
    assert torch_backend.home([torch.empty(1), torch.empty(1, device="meta")]).type == "meta"
    assert torch_backend.home([]).type == "cpu"
