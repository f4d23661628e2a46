"""Norms for every p, by tensor and joint, of tensors that lie on four ranks in every way, are those of the whole.

R11, R12, R23 (a tied tensor), R66 (mixed types), R68; traps 4 and 5 of the methods: every element once, every p by its
own rule; trap 14: types and meshes mixed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from rank_pool import run_on_ranks
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import gradmedic as gm

NORM_TYPES = (1.0, 2.0, 3.0, math.inf)
LIMIT = 0.05
LR = 0.5
#: name -> (shape, type, how it lies on the ranks); "row" and "few" leave ranks without any element.
TENSORS = {
    "plain": ((3, 2), torch.float32, "plain"),
    "uneven": ((5, 3), torch.float32, "line"),
    "row": ((1, 4), torch.float32, "line"),
    "few": ((2, 3), torch.bfloat16, "line"),
    "columns": ((3, 7), torch.float64, "line by columns"),
    "hybrid": ((5, 2), torch.float32, "replicated shards"),
    "grid": ((6, 5), torch.bfloat16, "shards of shards"),
    "copied": ((4,), torch.float32, "replicated"),
    "addends": ((4, 2), torch.float32, "partial"),
    "absent": ((4, 3), torch.float32, "line, on some ranks"),
    "frozen": ((3,), torch.float32, "line, frozen"),
    "nobody": ((3,), torch.float32, "line, without gradient"),
}


def value_of(name: str, kind: str) -> torch.Tensor:
    shape, dtype, how = TENSORS[name]
    generator = torch.Generator().manual_seed(sum(map(ord, name + kind)))
    value = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    if kind == "gradient" and "some ranks" in how:
        value[2:] = 0  # what only the others would have
    return value


def gradient_of(name: str) -> torch.Tensor | None:
    return None if name in ("frozen", "nobody") else value_of(name, "gradient")


class Model(nn.Module):
    """All of them, the first one under two names."""

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        super().__init__()
        for name, parameter in parameters.items():
            self.register_parameter(name, parameter)
        self.register_parameter("tied", parameters["uneven"])


def whole() -> Model:
    model = Model({name: nn.Parameter(value_of(name, "weight"), name != "frozen") for name in TENSORS})
    for name in TENSORS:
        getattr(model, name).grad = gradient_of(name)
    return model


def spread() -> Model:
    line = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    places = {
        "line": (line, [Shard(0)]),
        "line by columns": (line, [Shard(1)]),
        "replicated shards": (square, [Replicate(), Shard(0)]),
        "shards of shards": (square, [Shard(0), Shard(1)]),
        "replicated": (square, [Replicate(), Replicate()]),
        "partial": (line, [Replicate()]),
    }
    rank, parameters = distributed.get_rank(), {}
    for name, (_, _, how) in TENSORS.items():
        value, gradient = value_of(name, "weight"), gradient_of(name)
        if how != "plain":
            mesh, placements = places[how.split(",")[0]]
            value = distribute_tensor(value, mesh, placements)
            if gradient is not None and how == "partial":
                gradient = DTensor.from_local(gradient * (0.1 + 0.1 * rank), mesh, [Partial()])
            elif gradient is not None:
                gradient = distribute_tensor(gradient, mesh, placements)
        parameters[name] = nn.Parameter(value, name != "frozen")
        if "some ranks" not in how or rank < 2:
            parameters[name].grad = gradient
    return Model(parameters)


def full(tensor: torch.Tensor) -> np.ndarray:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().double().numpy()


def trained(make: Any, transform: Any) -> dict[str, Any]:
    model = make()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=LR)
    with gm.watch(model, optimizer, transform=transform, strict=True) as monitor:
        optimizer.step()
        frame = monitor.latest
        table = frame.tensors
        return {
            "total": (frame.grad_norm, frame.grad_norm_post),
            "norm": dict(zip(table.names, table.columns["norm"].tolist(), strict=True)),
            "status": dict(zip(table.names, table.columns["status"].tolist(), strict=True)),
            "weights": {name: full(p) for name, p in model.named_parameters()},
        }


def everything(make: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for p in NORM_TYPES:
        model = make()
        chosen = [*model.parameters(), model.tied]  # listed twice
        found[f"drop-in {p}"] = [float(gm.clip_grad_norm_(chosen, limit, p)) for limit in (LIMIT, math.inf)]
        for per in ("tensor", "model"):
            found[f"{per} {p}"] = trained(make, gm.clip.norm(LIMIT, per=per, norm_type=p))
    found["watched"] = trained(make, None)
    return found


def on_ranks() -> dict[str, Any]:
    return everything(spread)


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    return run_on_ranks(on_ranks, world=4)


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return everything(whole)


def vector_norm(name: str, p: float) -> float:
    gradient = gradient_of(name)
    return 0.0 if gradient is None else float(torch.linalg.vector_norm(gradient.double(), p))


@pytest.mark.parametrize("p", NORM_TYPES)
def test_the_joint_norm_is_that_of_all_elements_once(p, ranks):
    total = float(torch.linalg.vector_norm(torch.tensor([vector_norm(name, p) for name in TENSORS]), p))
    for found in ranks:
        before, after = found[f"drop-in {p}"]
        assert before == pytest.approx(total, rel=1e-5)
        assert after == pytest.approx(LIMIT, rel=1e-3)  # a third of the elements are bf16


def test_each_tensors_norm_is_that_of_the_whole(ranks, expected):
    for found in ranks:
        assert found["watched"]["status"] == expected["watched"]["status"]
        for name, norm in found["watched"]["norm"].items():
            assert norm == pytest.approx(vector_norm(name, 2.0), rel=1e-6, nan_ok=True) or name == "nobody"
    assert len({found["watched"]["total"] for found in ranks}) == 1


@pytest.mark.parametrize("per", ["tensor", "model"])
@pytest.mark.parametrize("p", NORM_TYPES)
def test_clipping_by_any_norm_leaves_the_weights_of_one_process(per, p, ranks, expected):
    for found in ranks:
        one, other = found[f"{per} {p}"], expected[f"{per} {p}"]
        np.testing.assert_allclose(one["total"], other["total"], rtol=1e-5)
        for name, weight in other["weights"].items():
            # bf16 gradients are rounded after they were scaled, the same on one rank and on four.
            np.testing.assert_allclose(one["weights"][name], weight, rtol=1e-5, atol=1e-6, err_msg=name)
