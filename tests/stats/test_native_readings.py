"""What the compiled kernel reads of activations and attention, against float64 torch."""

import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gradmedic.stats import gradient_stats
from gradmedic.stats.native import kernel, measure_one
from gradmedic.stats.native_readings import attend, count_units, norms_and_means

there = hasattr(kernel(), "attention")


def expected_attention(query, key, scale, step, first, causal):
    q, k = query.double(), key.double().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    places = torch.arange(0, step * q.shape[2], step)
    later = torch.arange(k.shape[2])[None, :] > places[:, None]
    logits = q @ k.transpose(-2, -1) * scale
    logits = logits.masked_fill(later, -math.inf) if causal else logits
    weights = torch.nan_to_num(logits.softmax(-1))
    entropy = torch.special.entr(weights).sum(-1)[..., first:].mean(-1)
    able = max(int((places < k.shape[2] - 1).sum()), 1)
    return torch.stack([entropy, logits.amax((-2, -1)), (weights * later).sum((-2, -1)) / able])


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("scale", [0.0, 0.2, 30.0])
@pytest.mark.parametrize(("heads", "sharing", "rows", "step", "depth"), [(2, 1, 7, 3, 5), (4, 2, 16, 1, 32)])
def test_attention_is_that_of_torch(causal, scale, heads, sharing, rows, step, depth):
    torch.manual_seed(0)
    keys = rows * step
    query = torch.randn(3, keys, heads, depth).transpose(1, 2)[:, :, ::step]
    key = torch.randn(3, keys, heads // sharing, depth).transpose(1, 2)
    read = attend(query, key, scale, step=step, first=rows // 2, causal=causal)
    assert (read is not None) == there
    if read is not None:
        expected = expected_attention(query, key, scale, step, rows // 2, causal)
        torch.testing.assert_close(torch.from_numpy(read), expected, rtol=1e-5, atol=1e-6)


def test_rows_without_numbers_attend_to_nothing():
    query, key = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)
    query[0, 1, 3, 0] = math.nan
    read = attend(query, key, 1.0, step=1, first=2, causal=False)
    if read is not None:
        entropy, largest, _ = read
        whole = torch.special.entr((query.double() @ key.double().transpose(-2, -1)).softmax(-1)).sum(-1)
        assert entropy[0, 1] == pytest.approx(float(whole[0, 1, 2]) / 2, rel=1e-5)
        assert math.isnan(largest[0, 1])
        assert math.isfinite(largest[0, 0])


def test_attention_that_does_not_fit_is_left_to_torch():
    query, key = torch.randn(2, 4, 4, 8), torch.randn(2, 4, 4, 8)
    assert attend(query.double(), key.double(), 1.0, step=1, first=0, causal=True) is None
    assert attend(query, key[:1], 1.0, step=1, first=0, causal=True) is None
    assert attend(query, key[:, :3], 1.0, step=1, first=0, causal=True) is None
    assert attend(query.transpose(2, 3), key.transpose(2, 3), 1.0, step=1, first=0, causal=True) is None


@pytest.mark.parametrize(("shape", "axis"), [((6, 5), 1), ((8, 7, 33), 2), ((8, 3, 4, 5), 1), ((4, 3, 5, 9), 3)])
@pytest.mark.parametrize("stride", [1, 2])
def test_counts_are_those_of_torch(shape, axis, stride):
    torch.manual_seed(1)
    values = torch.randn(shape)
    values.view(-1)[::7] = math.nan
    values.view(-1)[::5] = -0.5
    values.view(-1)[3] = math.inf
    values = values[::stride]
    others = [dim for dim in range(values.dim()) if dim != axis]
    cases = [({"above": -0.5}, values > -0.5), ({"low": -0.5, "high": 1.0}, (values <= -0.5) | (values >= 1.0))]
    for bounds, flags in cases:
        counts = count_units(values, axis, **bounds)
        assert (counts is not None) == there
        if counts is not None:
            assert counts.tolist() == flags.sum(dim=others).tolist()


def test_what_is_not_float32_with_whole_samples_is_left_to_torch():
    assert count_units(torch.randn(4, 3).double(), 1, above=0.0) is None
    assert count_units(torch.randn(4, 6)[:, ::2], 1, above=0.0) is None
    assert count_units(torch.randn(4, 3), 0, above=0.0) is None
    assert count_units(torch.randn(0, 3), 1, above=0.0) is None


def test_norms_and_means_are_those_of_torch():
    torch.manual_seed(2)
    gradient = torch.randn(3, 7, 4, 5).transpose(1, 2) * torch.tensor([1e-30, 1.0, 1e30, 0.0])[:, None, None]
    read = norms_and_means(gradient)
    assert (read is not None) == there
    if read is not None:
        rows = gradient.transpose(0, 1).reshape(4, -1).double()
        torch.testing.assert_close(read, (torch.linalg.vector_norm(rows, dim=1), rows.mean(1)), rtol=1e-12, atol=0.0)
        gradient[0, 1, 0, 0], gradient[0, 2, 0, 0] = math.nan, math.inf
        norm, mean = norms_and_means(gradient)
        assert norm.isnan().tolist() == mean.isnan().tolist() == [False, True, False, False]
        assert (float(norm[2]), float(mean[2])) == (math.inf, math.inf)


def test_gradients_that_lie_apart_are_left_to_torch():
    assert norms_and_means(torch.randn(2, 3, 4, 5).transpose(2, 3)) is None
    assert norms_and_means(torch.randn(2, 3, 4, 5).double()) is None


def given_back():
    tensor = torch.ones(2, 3, 4, 5)
    tensor.untyped_storage().resize_(0)
    return tensor


def traced():
    with FakeTensorMode():
        return torch.ones(2, 3, 4, 5)


def read_all(values):
    return [
        norms_and_means(values),
        count_units(values, 1, above=0.0),
        attend(values, values, 1.0, step=1, first=0, causal=False),
    ]


@pytest.mark.parametrize(
    "make", [given_back, traced, lambda: torch._efficientzerotensor((2, 3, 4, 5))], ids=["freed", "traced", "zeros"]
)
def test_tensors_without_memory_are_not_read(make):
    assert read_all(make()) == [None, None, None]


@pytest.mark.parametrize(
    ("transform", "shape"), [(torch.func.functionalize, (2, 3, 4, 5)), (torch.func.vmap, (6, 2, 3, 4, 5))]
)
def test_tensors_under_a_transform_are_not_read(transform, shape):
    read = []
    transform(lambda values: read.extend(read_all(values)) or values * 2)(torch.ones(shape))
    assert read == [None, None, None]


class Wrapped(torch.Tensor):
    pass


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_tensor_is_measured_as_many_are(dtype):
    torch.manual_seed(3)
    whole = torch.randn(6, 8, requires_grad=True).to(dtype)
    for tensor in (whole, whole.t(), whole[:, :3], whole[:0]):
        known = measure_one(tensor)
        assert (known is not None) == there
        if known is not None:
            table = gradient_stats([tensor])
            assert known == (table.moments[:, 0].tolist(), table.counts[:, 0].tolist())


def test_tensors_that_cannot_be_read_are_left_to_others():
    assert measure_one(torch.randn(3, 4).as_subclass(Wrapped)) is None
    assert measure_one(torch.randn(3, 4).as_subclass(Wrapped).t()) is None
    assert measure_one(torch.randn(3, 4, dtype=torch.complex64)) is None
    assert measure_one(torch.ones(3, 4, device="meta").t()) is None
