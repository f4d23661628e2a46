"""What may be passed, and what becomes of it."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from stats_cases import KERNEL, assert_close

from gradmedic.errors import InputError
from gradmedic.stats import gradient_stats, norms
from gradmedic.stats.inputs import all_plain, stored, unwrap

BACKENDS = pytest.mark.parametrize("backend", ["auto", "torch", *KERNEL, "reference"])


class Marked(torch.Tensor):
    """A subclass that refuses every operation but those of taking its data."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func.__name__ in ("detach", "as_subclass"):
            return super().__torch_function__(func, types, args, kwargs or {})
        raise AssertionError(f"{func.__name__} was called on the subclass")


class Sharded(torch.Tensor):
    """Stands in for a DTensor: its data is what `to_local` returns."""

    def to_local(self):
        return torch.full((2,), 3.0)


@BACKENDS
def test_every_way_of_passing_tensors(backend):
    xs = [torch.ones(2), torch.zeros(3)]
    expected = gradient_stats(xs, backend=backend)
    assert expected.names is None
    assert_close(gradient_stats((x for x in xs), backend=backend), expected, 0)
    assert_close(gradient_stats(tuple(xs), backend=backend), expected, 0)
    assert len(gradient_stats(xs[0], backend=backend)) == 1
    named = gradient_stats({"a": xs[0], "b": xs[1]}, backend=backend)
    assert named.names == ("a", "b")
    assert_close(named, expected, 0)
    assert len(gradient_stats([], histogram=True, backend=backend)) == 0
    assert norms([], backend=backend).shape == (0,)
    assert norms((x for x in xs), backend=backend).tolist() == pytest.approx([2**0.5, 0])


@BACKENDS
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (None, r"leave out parameters whose \.grad is None"),
        ("weights", "pass tensors only"),
        (torch.ones(2, dtype=torch.int64), r"got torch\.int64"),
        (torch.ones(2, dtype=torch.bool), r"got torch\.bool"),
        (torch.ones(2, device="meta"), "meta device"),
    ],
)
def test_what_cannot_be_measured_is_named(backend, bad, message):
    for function in (gradient_stats, norms):
        with pytest.raises(InputError, match=f"tensor 1 .*{message}"):
            function([torch.ones(2), bad], backend=backend)
        with pytest.raises(InputError, match=r"tensor 'layer\.weight'"):
            function({"layer.weight": bad}, backend=backend)


def test_arguments_are_checked():
    with pytest.raises(InputError, match="expected backend to be one of auto, torch, native, reference, got 'cuda'"):
        gradient_stats([], backend="cuda")
    with pytest.raises(InputError, match="got int"):
        gradient_stats(3)


@BACKENDS
def test_no_graph_is_kept_and_nothing_is_changed(backend):
    leaf = torch.randn(2000, requires_grad=True)
    inner = leaf * 2
    before = inner.detach().clone()
    table = gradient_stats([leaf, inner], histogram=True, backend=backend)
    assert not table.moments.requires_grad
    assert not norms([inner], backend=backend).requires_grad
    assert torch.equal(inner, before)
    assert leaf.grad is None
    reference = weakref.ref(inner)
    del inner
    gc.collect()
    assert reference() is None


@BACKENDS
def test_subclasses_are_measured_by_their_plain_data(backend):
    data = torch.randn(10)
    xs = [data.as_subclass(Marked), torch.nn.Parameter(data), torch.nn.Buffer(data)]
    assert_close(gradient_stats(xs, backend=backend), gradient_stats([data] * 3, backend=backend), 0)
    assert gradient_stats([torch.zeros(1).as_subclass(Sharded)], backend=backend).norm.item() == pytest.approx(18**0.5)


def test_a_wrapper_without_data_of_its_own_is_refused():
    from torch.testing._internal.two_tensor import TwoTensor

    with pytest.raises(InputError, match="TwoTensor, which wraps other tensors"):
        gradient_stats([TwoTensor(torch.ones(2), torch.ones(2))])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_layouts(backend):
    torch.manual_seed(0)
    dense = torch.randn(8, 6) * (torch.rand(8, 6) > 0.6)
    wide = torch.randn(2, 3, 4, 5)
    negative = torch.randn(4, dtype=torch.complex64).conj().imag
    xs = [
        dense.to_sparse(),
        dense.to_sparse(1),
        dense.to_sparse_csr(),
        dense.to_sparse_bsr((2, 2)),
        dense.to_mkldnn(),
        wide.to(memory_format=torch.channels_last),
        wide.permute(3, 1, 0, 2),
        wide[:, 1:, ::2],
        negative,
    ]
    plain = [dense] * 5 + [wide, wide, wide[:, 1:, ::2].contiguous(), negative.clone()]
    assert_close(
        gradient_stats(xs, histogram=True, backend=backend), gradient_stats(plain, histogram=True, backend="reference")
    )


def test_sparse_duplicates_are_added_before_measuring():
    coo = torch.sparse_coo_tensor(torch.zeros(1, 1000).long(), torch.ones(1000), (3,), check_invariants=True)
    assert gradient_stats([coo]).max_abs.item() == 1000


@BACKENDS
def test_data_at_an_odd_address(backend):
    raw = bytearray(4 * 100 + 1)
    x = torch.frombuffer(raw, dtype=torch.float32, count=100, offset=1)
    assert_close(gradient_stats([x], backend=backend), gradient_stats([x.clone()], backend=backend), 0)


def test_default_device_and_dtype_do_not_matter():
    torch.set_default_dtype(torch.float16)
    torch.set_default_device("meta")
    try:
        tables = [gradient_stats([torch.ones(4, device="cpu")], histogram=True, backend=b) for b in ("auto", "torch")]
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    for table in tables:
        assert table.norm.item() == 2.0
        assert table.norm.dtype == torch.float64


@pytest.mark.parametrize(
    "other",
    [
        torch.nn.Parameter(torch.ones(2)),
        torch.ones(2, requires_grad=True),
        torch.ones(2).to_sparse(),
        torch.ones(2, 2).to_sparse_csr(),
        torch.ones(2, device="meta"),
        torch.ones(2, dtype=torch.int64),
        torch.ones(2).as_subclass(Sharded),
        torch.ones(2).to_mkldnn(),
        None,
        1.0,
    ],
    ids=lambda other: f"{type(other).__name__} {getattr(other, 'layout', '')}",
)
def test_one_that_is_not_plain_is_found_among_many(other):
    plain = [torch.ones(2), torch.ones(()), torch.ones(3, 4)[:, ::2], torch.ones(2).bfloat16(), torch.ones(1) * 1j]
    assert all_plain(plain)
    assert all(stored(unwrap(each, ""), "") == (each, 0) for each in plain[1:2])
    assert not all_plain([*plain, other, *plain])
    assert not all_plain([other])


def test_nothing_at_all_is_measured_as_nothing():
    assert not all_plain([])
    assert norms([], backend="torch").shape == (0,)
    assert len(gradient_stats([], histogram=True, backend="torch")) == 0
