"""Every statistic of a watched step against float64: dtypes, layouts, poisoned and degenerate gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from core_reference import as_float64, batch, frames, grad_norm, net, norm, set_gradients, statistics, watch
from torch import nn

from gradmedic.frame import Frame
from gradmedic.types import COUNT_COLUMNS, MOMENT_COLUMNS

pytestmark = pytest.mark.filterwarnings("error")

mse = nn.functional.mse_loss
BACKENDS = ["auto", "torch", "reference"]


def one_step(model: nn.Module, make: Any, **options: Any) -> tuple[Frame, dict[str, torch.Tensor]]:
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    with watch(model, optimizer, **options) as monitor:
        set_gradients(model, make)
        held = {name: p.grad.clone() for name, p in model.named_parameters()}
        optimizer.step()
        return monitor.latest, held


def assert_rows(frame: Frame, gradients: dict[str, torch.Tensor], rel: float = 1e-5) -> None:
    for name, gradient in gradients.items():
        expected, row = statistics(gradient), frame.tensors[name]
        assert {key: row[key] for key in COUNT_COLUMNS} == {key: expected[key] for key in COUNT_COLUMNS}
        scale = expected["mean_abs"] or 1.0
        assert [row[key] for key in MOMENT_COLUMNS] == pytest.approx(
            [expected[key] for key in MOMENT_COLUMNS], rel=rel, abs=rel * scale
        )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_each_dtype_has_its_statistics(dtype, backend):
    """R60: all columns in fp32 or better, whatever the model's dtype."""
    draw = torch.Generator().manual_seed(0)
    frame, held = one_step(
        net(width=40, dtype=dtype), lambda p: torch.randn(p.shape, generator=draw).to(p.dtype), backend=backend
    )
    assert_rows(frame, held)
    assert frame.grad_norm == pytest.approx(norm(held.values()), rel=1e-6)
    assert frame.nonfinite == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_million_bf16_elements(backend):
    """R60: mean and norm of 2^20 bf16 elements within 1e-4 of float64."""
    model = nn.Linear(1024, 1024, bias=False).to(torch.bfloat16)
    draw = torch.Generator().manual_seed(0)
    frame, held = one_step(model, lambda p: (torch.rand(p.shape, generator=draw) + 0.5).to(p.dtype), backend=backend)
    assert_rows(frame, held, rel=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_many_fp16_tensors_whose_joint_norm_overflows_fp16(backend):
    """R60: twenty fp16 tensors of 2e4 have a norm beyond fp16's range."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(4, dtype=torch.float16)) for _ in range(20)])
    frame, held = one_step(model, lambda p: torch.full_like(p, 2e4), backend=backend)
    assert frame.grad_norm == pytest.approx(norm(held.values()), rel=1e-6)
    assert frame.grad_norm > 65504


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", [1e25, 1e-30, 1e38])
def test_extremes_of_fp32_neither_overflow_nor_vanish(size, backend):
    """R4: norms of huge and tiny fp32 gradients."""
    frame, held = one_step(net(), lambda p: torch.full_like(p, size), backend=backend)
    assert frame.grad_norm == pytest.approx(norm(held.values()), rel=1e-6)
    assert frame.tensors["0.weight"].norm == pytest.approx(norm([held["0.weight"]]), rel=1e-6)


POISON: dict[str, list[float]] = {
    "all NaN": [math.nan] * 4,
    "all inf": [math.inf, -math.inf, math.inf, math.inf],
    "mixed": [math.nan, math.inf, 1.0, -2.0],
    "constant": [0.5] * 4,
    "all zero": [0.0, -0.0, 0.0, 0.0],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [*POISON, "single", "empty"])
def test_no_gradient_breaks_the_statistics_or_the_histogram(kind, backend):
    """R16: no exception; moments over finite elements, separate counts, histogram over what is finite and not zero."""
    values = {"single": [3.0], "empty": []}.get(kind) or POISON.get(kind, [])
    model = nn.ParameterList([nn.Parameter(torch.zeros(len(values))), nn.Parameter(torch.zeros(2))])

    def make(parameter: torch.Tensor) -> torch.Tensor:
        return torch.tensor(values) if parameter is model[0] else torch.ones(2)

    frame, held = one_step(model, make, backend=backend)
    assert_rows(frame, held)
    assert_rows(frame, {"1": torch.ones(2)})
    flat = as_float64(held["0"])
    countable = sum(1 for value in flat if math.isfinite(value) and value != 0)
    assert frame.tensors["0"].log2_hist.sum() == countable
    assert frame.tensors["1"].log2_hist.sum() == 2
    assert frame.nonfinite == sum(not math.isfinite(value) for value in flat)
    if math.nan in values:
        assert math.isnan(frame.grad_norm)
    elif frame.nonfinite:
        assert frame.grad_norm == math.inf


@pytest.mark.parametrize("scalars_only", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_a_nan_is_told_on_steps_without_a_table_too(scalars_only, backend):
    """R16: the frame's norm and count of non-finite elements do not depend on sampling."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    every = 1000 if scalars_only else 1
    with watch(model, optimizer, every=every, backend=backend) as monitor:
        for step in range(3):
            set_gradients(model, lambda p, step=step: torch.full_like(p, math.nan if step == 2 else 1.0))
            optimizer.step()
        found = frames(monitor)
    assert [math.isnan(frame.grad_norm) for frame in found] == [False, False, True]
    assert [frame.nonfinite > 0 for frame in found] == [False, False, True]
    assert found[1].grad_norm == pytest.approx(31**0.5)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("kind", ["SparseAdam", "SGD"])
def test_sparse_gradients_count_as_their_dense_form(kind, backend):
    """Embedding(sparse=True): coalesced, with duplicates added up and absent rows counted as zeros."""
    torch.manual_seed(0)
    model = nn.EmbeddingBag(10, 3, sparse=True, mode="sum")
    optimizer = getattr(torch.optim, kind)(list(model.parameters()), lr=0.1)
    with watch(model, optimizer, backend=backend) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.tensor([[1, 1, 4], [7, 1, 4]])).square().sum().backward()
            dense = model.weight.grad.to_dense()
            optimizer.step()
            assert_rows(monitor.latest, {"weight": dense})
            assert monitor.latest.grad_norm == pytest.approx(norm([dense]), rel=1e-6)
            assert not monitor.latest.stale_grads


def test_a_sparse_and_a_dense_part_together():
    """One model, two optimizers, sparse and dense gradients; each frame has its own."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(10, 3, sparse=True), nn.Linear(3, 1))
    one = torch.optim.SparseAdam(list(model[0].parameters()), lr=0.1)
    two = torch.optim.AdamW(model[1].parameters(), lr=0.1)
    with watch(model, {"sparse": one, "dense": two}) as monitor:
        model(torch.tensor([1, 1, 4])).square().sum().backward()
        expected = {"sparse": grad_norm(model[0]), "dense": grad_norm(model[1])}
        one.step()
        two.step()
        found = {frame.optimizer: frame.grad_norm for frame in frames(monitor)}
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_parameters_are_measured_by_magnitude(dtype, backend):
    """Norms and extremes of |g|, and a step and a loss as ever."""
    torch.manual_seed(0)
    model = nn.ParameterList([nn.Parameter(torch.randn(5, dtype=dtype))])
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    with watch(model, optimizer, backend=backend) as monitor:
        loss = (model[0] * (1 + 2j)).abs().square().sum()
        loss.backward()
        gradient = model[0].grad.clone()
        optimizer.step()
        frame = monitor.latest
    magnitude = gradient.to(torch.complex128).abs()
    assert frame.loss == pytest.approx(loss.item(), rel=1e-6)
    assert frame.grad_norm == pytest.approx(magnitude.square().sum().sqrt().item(), rel=1e-6)
    row = frame.tensors["0"]
    assert (row.max_abs, row.min_abs) == pytest.approx((magnitude.max().item(), magnitude.min().item()), rel=1e-6)
    assert row.unchanged_frac < 1


def test_mixed_dtypes_and_frozen_or_integer_tensors_in_one_model():
    """R60: each tensor by its own dtype; what cannot be trained is left out."""
    model = nn.ParameterList(
        [
            nn.Parameter(torch.randn(3, dtype=dtype))
            for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        ]
        + [nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False), nn.Parameter(torch.ones(2))]
    )
    model[5].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch(model, optimizer) as monitor:
        for p in model:
            if p.requires_grad:
                (p.double() ** 2).sum().backward()
        expected = norm(p.grad for p in model)
        optimizer.step()
    assert monitor.latest.grad_norm == pytest.approx(expected, rel=1e-6)
    assert set(monitor.latest.tensors) == {"0", "1", "2", "3"}


def test_updates_and_weights_are_those_of_the_step():
    """`weight_norm` is exact and before the step; `update_norm` exact for small tensors; lr 0 changes nothing."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    directions: list[dict[str, torch.Tensor]] = []
    with watch(model, optimizer) as monitor:
        for step in range(3):
            optimizer.zero_grad()
            mse(model(batch(step)[0]), batch(step)[1]).backward()
            weights = {name: p.detach().double() for name, p in model.named_parameters()}
            gradients = {name: p.grad.double() for name, p in model.named_parameters()}
            optimizer.step()
            for name, row in monitor.latest.tensors.items():
                assert row.weight_norm == pytest.approx(weights[name].norm().item(), rel=1e-6)
                assert row.update_norm == pytest.approx(0.1 * gradients[name].norm().item(), rel=1e-4)
                if directions:
                    pair = (gradients[name].ravel(), directions[-1][name].ravel())
                    expected = torch.nn.functional.cosine_similarity(*pair, dim=0).item()
                    assert row.cosine_prev == pytest.approx(expected, abs=1e-5)
            directions.append(gradients)
        optimizer.param_groups[0]["lr"] = 0.0
        optimizer.step()
        assert {row.unchanged_frac for row in monitor.latest.tensors.values()} == {1.0}
