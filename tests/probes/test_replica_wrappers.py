"""Which wrapper averages a model's gradients: also one made anew, and one that `gc.freeze()` has hidden."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic.probes import replicas
from gradmedic.probes.replicas import Replicas


class Wrapper(nn.Module):
    """What is asked of DistributedDataParallel."""

    def __init__(self, module: nn.Module, group: object) -> None:
        super().__init__()
        self.module = module
        self.process_group = group


@pytest.fixture
def groups(monkeypatch):
    monkeypatch.setattr(nn.parallel, "DistributedDataParallel", Wrapper)
    monkeypatch.setattr(replicas, "several_ranks", lambda: True)
    frozen = gc.get_freeze_count()
    gc.unfreeze()  # as in a training: what is frozen is looked for in another way
    yield [SimpleNamespace(size=lambda: 2) for _ in range(2)]
    if frozen:
        gc.freeze()


def test_a_wrapper_made_anew_takes_the_place_of_the_one_that_is_gone(groups):
    model, found = nn.Linear(2, 2), Replicas()
    wrapper = Wrapper(model, groups[0])
    assert found.group(model.parameters()) == (groups[0],)
    del wrapper
    gc.collect()
    wrapper = Wrapper(model, groups[1])
    assert found.group(model.parameters()) == (groups[1],)
    assert wrapper.module is model


def test_after_a_while_without_a_wrapper_the_next_is_found(groups, monkeypatch):
    looks = []
    look = replicas._wrapper_of
    monkeypatch.setattr(replicas, "_wrapper_of", lambda parameter: looks.append(1) or look(parameter))
    model, found = nn.Linear(2, 2), Replicas()
    wrapper = Wrapper(model, groups[0])
    assert found.group(model.parameters()) == (groups[0],)
    del wrapper
    gc.collect()
    assert {found.group(model.parameters()) for _ in range(20)} == {None}
    assert len(looks) <= 7
    wrapper = Wrapper(model, groups[1])
    assert any(found.group(model.parameters()) == (groups[1],) for _ in range(20))
    assert wrapper.module is model


def test_a_wrapper_that_no_list_of_the_collector_has_is_found(groups):
    model = nn.Linear(2, 2)
    wrapper = Wrapper(model, groups[0])
    gc.freeze()
    trainer = [wrapper]
    try:
        assert not any(each is wrapper for each in gc.get_objects())
        assert Replicas().group(model.parameters()) == (groups[0],)
        assert trainer
    finally:
        gc.unfreeze()


def test_a_wrapper_that_was_seen_at_work_needs_no_look(groups, monkeypatch):
    monkeypatch.setattr(gc, "get_objects", list)
    model = nn.Linear(2, 2)
    wrapper = Wrapper(model, groups[0])
    assert Replicas().group(model.parameters()) is None
    with gm.watch(model, strict=True):
        monkeypatch.setattr(Wrapper, "_active_ddp_module", wrapper, raising=False)
        model(torch.ones(1, 2)).sum().backward()
        monkeypatch.setattr(Wrapper, "_active_ddp_module", None)
    assert Replicas().group(model.parameters()) == (groups[0],)
    assert Replicas().group(nn.Linear(2, 2).parameters()) is None
