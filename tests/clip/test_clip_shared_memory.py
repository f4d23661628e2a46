"""Two parameters whose gradient is one memory: it is treated once, and the record says what is left of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic.clip.apply import apply_operations, scale_gradients
from gradmedic.clip.operations import Limit, MomentLimit, Scale, UnitScale
from gradmedic.clip.shared import shared_groups

TRANSFORMS = {
    "norm": gm.clip.norm(1.0),
    "tensor": gm.clip.norm(1.0, per="tensor"),
    "unit": gm.clip.norm(1.0, per="unit"),
    "value": gm.clip.value(1.0),
    "chain": gm.clip.chain(gm.clip.norm(1.0), gm.clip.norm(0.5, per="tensor")),
    "layers": gm.clip.layers({"1": 1.0, "0": 3.0, "2": 1.0}),
    "units of the second": gm.clip.layers({"1": gm.clip.norm(1.0, per="unit")}),
    "limit of the second": gm.clip.layers({"1": gm.clip.value(1.0)}),
    "agc": gm.clip.agc(0.1),
}
CLIPS = {
    "torch": lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0),
    "torch, one by one": lambda parameters: nn.utils.clip_grad_norm_(parameters, 1.0, foreach=False),
    "torch, listed twice": lambda parameters: nn.utils.clip_grad_norm_([*parameters, *parameters], 1.0),
    "torch, by value": lambda parameters: nn.utils.clip_grad_value_(parameters, 1.0),
    "ours": lambda parameters: gm.clip_grad_norm_(parameters, 1.0),
}


def step(backend, detached, transform=None, clip=None):
    """Make one step of three parameters, of which two have one gradient; return the frame and the norms."""
    model = nn.ParameterList(nn.Parameter(torch.ones(4)) for _ in range(3))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    with gm.watch(model, optimizer, transform=transform, backend=backend, strict=True) as monitor:
        sum(parameter.sum() for parameter in parameters).backward()
        gradient = torch.full((4,), 3.0)
        parameters[0].grad, parameters[1].grad = gradient, gradient.detach() if detached else gradient
        before = joint_norm(parameters)
        if clip is not None:
            clip(parameters)
        optimizer.step()
        return monitor.latest, before, joint_norm(parameters), parameters


def joint_norm(parameters):
    return math.sqrt(sum(float(parameter.grad.norm()) ** 2 for parameter in parameters))


def check(frame, before, after, parameters):
    assert frame.grad_norm == pytest.approx(before)
    assert frame.grad_norm_post == pytest.approx(after)
    factors = [frame.tensors[name]["clip_scale"] for name in frame.tensors]
    left = [float(parameter.grad.norm()) / norm for parameter, norm in zip(parameters, (6, 6, 2), strict=True)]
    assert factors == pytest.approx(left)


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_the_recorded_norm_is_that_of_the_gradients_that_a_transform_has_left(name, backend, detached):
    check(*step(backend, detached, transform=TRANSFORMS[name]))


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("name", CLIPS)
def test_the_recorded_norm_is_that_of_the_gradients_that_the_script_s_clip_has_left(name, backend, detached):
    """torch multiplies a memory as often as it is listed."""
    check(*step(backend, detached, clip=CLIPS[name]))


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_the_joint_norm_after_clipping_is_the_threshold(backend):
    _, _, after, _ = step(backend, False, transform=gm.clip.norm(1.0))
    assert after == pytest.approx(1.0)
    _, _, after, _ = step(backend, False, clip=CLIPS["ours"])
    assert after == pytest.approx(1.0)


@pytest.mark.parametrize("on_host", [False, True])
def test_of_several_factors_and_limits_the_smallest_is_taken(on_host):
    def left(operation):
        shared = torch.full((2, 2), 8.0)
        gradients = [torch.full((2, 2), 8.0), shared, None, shared.detach(), shared]
        assert apply_operations(gradients, [operation], on_host=on_host) == [1, 3, 4]
        return float(gradients[0][0, 0]), float(shared[0, 0]), float(shared[1, 0])

    def factor(*values):
        return torch.tensor(values, dtype=torch.float64)

    assert left(Scale(torch.tensor(0.5, dtype=torch.float64))) == (4, 4, 4)
    assert left(Scale(factor(1, 0.5, 1, 0.25, 1))) == (8, 2, 2)
    units = UnitScale({1: factor(0.5, 1), 3: factor(0.25, 1)}, {1: 0, 3: 0})
    assert left(units) == (8, 2, 8)
    assert left(UnitScale({4: factor(0.5, 1)}, {4: 0})) == (8, 4, 8)
    assert left(Limit({3: 4.0, 4: 2.0})) == (8, 2, 2)
    assert left(MomentLimit(1.0, {1: torch.full((2, 2), 16.0), 3: torch.full((2, 2), 4.0)})) == (8, 2, 2)


def two_shapes():
    """Autograd gives both parameters a view of one memory."""
    model = nn.ParameterList([nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(4, 1))])
    (3 * (model[0].view(-1) + model[1].view(-1))).sum().backward()
    assert model[0].grad.data_ptr() == model[1].grad.data_ptr()
    return model


def added_embeddings():
    """The values of both sparse gradients are one memory, too."""
    model = nn.ModuleList(nn.Embedding(10, 3, sparse=True) for _ in range(2))
    places = torch.tensor([1, 2, 1])
    (3 * (model[0](places) + model[1](places))).sum().backward()
    assert len({each.weight.grad._values().data_ptr() for each in model}) == 1
    return model


#: The norms of each gradient that are left: of two shapes, and of two embeddings.
LEFT = {
    "norm": (gm.clip.norm(1.0), 0.5**0.5, 0.5**0.5),
    "tensor": (gm.clip.norm(1.0, per="tensor"), 1.0, 1.0),
    "unit": (gm.clip.norm(1.0, per="unit"), 2**0.5, 2**0.5),
    "value": (gm.clip.value(0.1), 0.2, 0.1 * 6**0.5),
    "value, then norm": (gm.clip.chain(gm.clip.value(0.1), gm.clip.norm(0.01)), 0.01 * 0.5**0.5, 0.01 * 0.5**0.5),
}


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("made", [two_shapes, added_embeddings])
@pytest.mark.parametrize("name", LEFT)
def test_one_memory_in_two_shapes_is_clipped_once(name, made, backend):
    transform, *left = LEFT[name]
    expected = [left[made is added_embeddings]] * 2
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, transform=transform, backend=backend, strict=True) as monitor:
        optimizer.step()
        norms = gm.stats.norms([parameter.grad for parameter in model.parameters()]).tolist()
        assert norms == pytest.approx(expected, rel=1e-4)
        assert monitor.latest.grad_norm_post == pytest.approx(math.hypot(*norms))


@pytest.mark.parametrize("made", [two_shapes, added_embeddings])
def test_our_clip_by_norm_scales_one_memory_in_two_shapes_once(made):
    parameters = list(made().parameters())
    gm.clip_grad_norm_(parameters, 1.0)
    assert gm.stats.norms([parameter.grad for parameter in parameters]).tolist() == pytest.approx([0.5**0.5] * 2)


def test_of_one_memory_in_two_shapes_each_element_gets_the_smallest_that_any_shape_allows():
    def left(operation, turned=True):
        flat = torch.full((2, 2), 8.0)
        flat[1, 1] = math.nan
        assert apply_operations([flat, flat.t() if turned else flat.view(4)], [operation]) == [0, 1]
        return flat.nan_to_num(-1.0).tolist()

    def factor(*values):
        return torch.tensor(values, dtype=torch.float64)

    assert left(UnitScale({0: factor(0.5, 0.5), 1: factor(1, 0.25)}, {0: 0, 1: 0})) == [[4, 2], [4, -1]]
    assert left(Limit({0: 4.0, 1: 2.0})) == [[2, 2], [2, -1]]
    assert left(UnitScale({1: factor(1, 0.25)}, {1: 0})) == [[8, 2], [8, -1]]
    assert left(Limit({1: 2.0}), turned=False) == [[2, 2], [2, -1]]


def test_what_lies_apart_is_not_shared():
    flat = torch.ones(8)
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (4,), check_invariants=True)
    gradients = [flat[:4], flat[4:], flat[:2], torch.empty(0), torch.empty(0), None, None, sparse]
    assert shared_groups(gradients) == []
    assert shared_groups([*gradients, sparse, flat[:4]]) == [[0, 9], [7, 8]]
    scale_gradients([flat[:4], flat[:4], sparse, sparse], torch.tensor(0.5, dtype=torch.float64))
    assert flat.tolist() == [0.5] * 4 + [1.0] * 4
    assert sparse.to_dense().tolist() == [0.5, 0.0, 0.0, 0.0]
