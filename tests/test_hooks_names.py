"""Names: stable across wrappers, distinct across models, one for each tensor; and which models a script trains."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import gradmedic as gm
from gradmedic.names import is_wrapper_attribute, join, name_parameters, unique, unwrap, variable_name, walk_modules
from gradmedic.roster import Roster, find_models
from hooks_training import batches, mlp, sgd, train
from hooks_training import single_thread as single_thread

PLAIN = ["0.weight", "0.bias", "2.weight", "2.bias"]


def names(models) -> list[str]:
    models = models if isinstance(models, dict) else {"": models}
    return [entry.name for entry in name_parameters(models).values()]


def deep_wrap(model: nn.Module) -> nn.Module:
    model[0] = checkpoint_wrapper(torch.compile(model[0]))
    return nn.DataParallel(torch.compile(nn.DataParallel(model)))


@pytest.mark.parametrize(
    "wrap",
    [torch.compile, nn.DataParallel, checkpoint_wrapper, deep_wrap],
    ids=["compile", "data parallel", "checkpoint", "all of them, nested"],
)
def test_names_are_stable_across_wrappers(wrap):
    """R35: `_orig_mod.`, `module.` and `_checkpoint_wrapped_module.` of real wrappers are left out."""
    model = mlp()
    wrapped = wrap(model)
    assert names(wrapped) == PLAIN
    assert unwrap(wrapped) is model


def test_names_under_ddp_are_stable(tmp_path):
    """R35: DistributedDataParallel's `module.` is left out, and the recorded series has the plain names."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.parallel.DistributedDataParallel(mlp())
        optimizer = sgd(model)
        with gm.watch(model, optimizer, strict=True) as monitor:
            train(model, optimizer, batches(3))
        assert monitor.run.matrix("norm")[1] == PLAIN
    finally:
        torch.distributed.destroy_process_group()


class Namesake(nn.Module):
    """A user's own module with attributes that are called as those of wrappers."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)
        self._orig_mod = nn.Linear(2, 2)
        self._fsdp_wrapped_module = nn.Linear(2, 2)


class DistributedDataParallel(nn.Module):
    """A user's own class that is called as torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(2, 2)


def test_a_users_own_attribute_called_module_stays():
    """R35: only real wrappers lose their prefix, whatever a user's attributes and classes are called."""
    assert names(Namesake())[::2] == ["module.weight", "_orig_mod.weight", "_fsdp_wrapped_module.weight"]
    assert names(DistributedDataParallel()) == ["module.weight", "module.bias"]
    assert not is_wrapper_attribute(DistributedDataParallel(), "module")


def test_two_models_of_one_class_have_distinct_names():
    """R35: two nets of one class under one monitor: distinct namespaces, each with its own optimizer's series."""
    one, two = mlp(1), mlp(2)
    first, second = sgd(one), sgd(two)
    with gm.watch({"one": one, "two": two}, {"a": first, "b": second}, strict=True) as monitor:
        for data in batches(3):
            _, norms_one = train(one, first, [data])
            _, norms_two = train(two, second, [data])
    assert monitor.run.matrix("norm")[1] == [f"one.{name}" for name in PLAIN] + [f"two.{name}" for name in PLAIN]
    last = monitor.run.matrix("norm", "b")[2][-1]
    assert last.tolist() == pytest.approx(list(norms_two[0].values()))
    assert monitor.run.matrix("norm", "a")[2][-1].tolist() == pytest.approx(list(norms_one[0].values()))


def test_two_monitors_write_two_records(tmp_path):
    """R35: two monitors on two nets of one class write records of their own."""
    nets = [mlp(1), mlp(2)]
    optimizers = [sgd(net) for net in nets]
    monitors = [gm.watch(nets[i], optimizers[i], record=tmp_path / str(i), strict=True) for i in range(2)]
    for net, optimizer in zip(nets, optimizers, strict=True):
        train(net, optimizer, batches(3))
    for monitor in monitors:
        monitor.close()
    runs = [gm.open_run(tmp_path / name) for name in "01"]
    assert [run.steps.num_rows for run in runs] == [3, 3]
    assert [run.matrix("norm")[1] for run in runs] == [PLAIN, PLAIN]


def test_names_that_would_collide_are_numbered():
    """R35: two different tensors never share a name; a tensor keeps its number for good."""

    class Colliding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(2, 2, bias=False)
            self.wrapped = nn.ModuleDict({"a": nn.Linear(2, 2, bias=False)})

    one, two = nn.Linear(2, 2, bias=False), nn.ModuleDict({"b": nn.Linear(2, 2, bias=False)})
    assert names({"a.b": one, "a": two}) == ["a.b.weight", "a.b.weight#2"]
    assert names({"": Colliding()}) == ["a.weight", "wrapped.a.weight"]


def test_tied_weights_are_one_tensor():
    """R35: a tied weight has one name and aliases, within a model and across models."""
    model = nn.ModuleDict({"emb": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["emb"].weight
    (entry,) = name_parameters({"": model}).values()
    assert (entry.name, entry.aliases, entry.module, entry.kind) == ("emb.weight", ["head.weight"], "emb", "Embedding")
    found = name_parameters({"x": model, "y": model["head"]})
    assert next(iter(found.values())).aliases == ["x.head.weight", "y.weight"]


def test_cycles_and_depth_are_walked_without_end():
    """R35: modules that hold each other, or lie a thousand deep, are named without a recursion error."""
    parent, child = nn.Module(), nn.Linear(2, 2)
    parent.child = child
    child.__dict__["_modules"]["parent"] = parent
    assert names(parent) == ["child.weight", "child.bias"]
    model = nn.Linear(1, 1)
    for _ in range(1500):
        outer = nn.Module()
        outer.add_module("m", model)
        model = outer
    assert len(list(walk_modules(model))) == 1501


def test_names_are_those_of_named_parameters():
    """R35: without wrappers, names, order and deduplication are torch's own."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 2, enable_nested_tensor=False)
    assert names(model) == [name for name, _ in model.named_parameters()]


def test_small_helpers():
    """R35: joining, numbering and looking up names."""
    assert [join("a", "b"), join("", "b"), join("a", ""), join("", "")] == ["a.b", "b", "a", ""]
    assert [unique("x", []), unique("x", ["x"]), unique("x", {"x", "x_2"})] == ["x", "x_2", "x_3"]
    thing = object()
    assert variable_name(thing, {"_hidden": thing, "it": thing}) == "it"
    assert variable_name(thing, {"equal": 1}) is None


# -- roster --------------------------------------------------------------------------------


def test_the_roster_holds_models_weakly():
    """R54: names of tensors that are gone are forgotten, and a new tensor at the same address is another one."""
    model = mlp()
    roster = Roster(model)
    assert len(roster.parameters) == 4
    assert not roster.gone
    del model
    gc.collect()
    assert roster.models == {}
    assert roster.parameters == []
    assert roster.gone


def test_the_roster_finds_new_parameters_and_knows_foreign_ones():
    """R49: unknown tensors make the roster name everything anew; tensors of no watched model stay unknown."""
    model = mlp()
    roster = Roster(model)
    model[2] = nn.Linear(16, 4)
    foreign = nn.Parameter(torch.ones(1))
    entries = roster.identify([model[2].weight, foreign, model[0].bias])
    assert [entry.name if entry else None for entry in entries] == ["2.weight", None, "0.bias"]
    assert roster.watches_any([model[2].weight])
    assert not roster.watches_any([foreign])


def test_models_are_found_by_what_an_optimizer_steps():
    """R35: in an unmodified script the outermost owners of the stepped tensors are the models, named by variables."""
    outer = nn.Sequential(mlp(), nn.Linear(4, 4))
    bare = torch.ones(2, requires_grad=True)
    found, _ = find_models([outer[0][0].weight, outer[1].bias])
    assert found == [outer]
    roster = Roster(None, lambda: {"network": outer, "offset": bare})
    entries = roster.identify([*outer.parameters(), bare])
    assert entries[-1].name == "offset"
    assert {entry.name.removeprefix("network.") for entry in entries[:-1]} == {n for n, _ in outer.named_parameters()}
