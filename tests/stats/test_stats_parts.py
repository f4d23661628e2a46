"""What of many gradients lies here, asked of all at once, is what is found one by one."""

from __future__ import annotations

import importlib

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from gradmedic.stats.mesh_layout import any_partial, local_of, locals_of
from gradmedic.stats.parts import local_gradients, parts_to_measure, readable, readable_among


@pytest.fixture
def mesh():
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # makes the "fake" backend known
    distributed.init_process_group("fake", store=distributed.HashStore(), rank=0, world_size=4)
    yield init_device_mesh("cpu", (4,))
    distributed.destroy_process_group()


def lying(mesh, placement, local=None):
    return DTensor.from_local(torch.randn(4, 2) if local is None else local, mesh, [placement], run_check=False)


def with_gradient(value, gradient):
    parameter = nn.Parameter(value)
    parameter.grad = gradient
    return parameter


def of_every_kind(mesh):
    """Return parameters by name: whole, divided, the same everywhere, not added up yet, without a gradient, on meta."""
    shard, meta = lying(mesh, Shard(0)), torch.zeros(3, device="meta")
    return {
        "whole": with_gradient(torch.zeros(3), torch.randn(3)),
        "whole, none": nn.Parameter(torch.zeros(3)),
        "whole, meta": with_gradient(meta, torch.zeros_like(meta)),
        "divided": with_gradient(shard, lying(mesh, Shard(0))),
        "divided, none": nn.Parameter(lying(mesh, Shard(0))),
        "divided, empty": with_gradient(shard, lying(mesh, Shard(0), torch.zeros(4, 2))),
        "everywhere": with_gradient(lying(mesh, Replicate()), lying(mesh, Replicate())),
        "addends": with_gradient(lying(mesh, Replicate()), lying(mesh, Partial())),
        "divided, meta": nn.Parameter(lying(mesh, Shard(0), torch.zeros(4, 2, device="meta"))),
    }


def test_who_takes_part_is_found_for_all_at_once(mesh):
    parameters = list(of_every_kind(mesh).values())
    for chosen in (parameters, parameters[3:4] * 3, parameters[:1], parameters[1:3], []):
        assert readable_among(chosen) == [at for at, parameter in enumerate(chosen) if readable(parameter)]
    assert readable_among(parameters) == [0, 3, 4, 5, 6, 7]


def test_gradients_of_the_divided_share_memory_with_what_lies_here(mesh):
    parameters = list(of_every_kind(mesh).values())
    found = local_gradients(parameters)
    assert [each is None for each in found] == [parameter.grad is None for parameter in parameters]
    for parameter, each in zip(parameters, found, strict=True):
        if each is not None:
            assert type(each) is torch.Tensor
            assert each is local_of(parameter.grad)
    assert all(
        a is b.grad._local_tensor for a, b in zip(local_gradients(parameters[3:4]), parameters[3:4], strict=True)
    )


def test_whole_tensors_stay_themselves_and_divided_ones_are_their_local_parts(mesh):
    whole, divided = nn.Parameter(torch.zeros(2)), nn.Parameter(lying(mesh, Shard(0)))
    with_graph = lying(mesh, Shard(0), torch.randn(4, 2, requires_grad=True))
    for chosen in ([whole], [divided], [whole, divided], [divided, with_graph], [torch.zeros(2), divided], []):
        found = locals_of(chosen)
        assert len(found) == len(chosen)
        assert all(part is local_of(each) for part, each in zip(found, chosen, strict=True))
        assert all(type(part) in (torch.Tensor, nn.Parameter) for part in found)
    assert locals_of([whole, divided])[0] is whole


def test_addends_are_added_up_where_all_ranks_do_it(mesh):
    kinds = of_every_kind(mesh)
    parameters = [kinds[name] for name in ("whole", "divided", "divided, none", "addends")]
    gradients = [parameter.grad for parameter in parameters]
    assert any_partial(gradients)
    assert not any_partial(gradients[:3])
    assert not any_partial([])
    parts, present = parts_to_measure(parameters, together=False)
    assert present == [True, True, False, True]
    assert [part.numel() for part in parts] == [3, 8, 0, 8]
    assert parts[3] is gradients[3]._local_tensor
    summed, present = parts_to_measure(parameters)
    assert present == [True, True, False, True]
    assert torch.equal(summed[1], parts[1])
    assert type(summed[3]) is torch.Tensor
    assert summed[3] is not gradients[3]._local_tensor
    assert parameters[3].grad is gradients[3]


class Marked(torch.Tensor):
    """A subclass that lets nothing be asked of it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called on the subclass")


def test_a_subclass_is_not_asked_for_its_gradient():
    parameter = torch.zeros(2).as_subclass(Marked)
    assert readable_among([parameter]) == []
    assert local_gradients([parameter]) == [None]
