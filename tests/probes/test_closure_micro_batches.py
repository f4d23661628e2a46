"""Closures that hold only a part of a step: the last of several micro-batches, or nothing at all."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import gradmedic as gm


def make():
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 8, 3)


def backward(model, x):
    loss = model(x).square().mean() / 2
    loss.backward()
    return loss


def test_the_last_micro_batch_lies_in_the_closure():
    """The loss of the first one was lost, and it was not counted."""
    model, optimizer, data = make()
    with gm.watch(model, optimizer, strict=True) as monitor:
        for first, second in ((data[0], data[1]), (data[2], data[3])):
            wanted = sum((model(x).square().mean() / 2).item() for x in (first, second))
            backward(model, first)
            optimizer.step(lambda second=second: backward(model, second))
            optimizer.zero_grad()
            assert monitor.latest.loss == pytest.approx(wanted)
            assert monitor.latest.micro_batches == 2


def test_a_closure_that_does_nothing():
    model, optimizer, data = make()
    with gm.watch(model, optimizer, strict=True) as monitor:
        loss = backward(model, data[0])
        optimizer.step(lambda: None)
    assert monitor.latest.loss == pytest.approx(loss.item())
    assert monitor.latest.micro_batches == 1


def test_what_a_closure_erases_first_is_not_counted():
    model, optimizer, data = make()

    def closure():
        optimizer.zero_grad()
        return backward(model, data[1])

    with gm.watch(model, optimizer, strict=True) as monitor:
        backward(model, data[0])
        wanted = (model(data[1]).square().mean() / 2).item()
        optimizer.step(closure)
    assert monitor.latest.loss == pytest.approx(wanted)
    assert monitor.latest.micro_batches == 1


def test_a_clip_with_an_infinite_threshold_only_measures():
    model, optimizer, data = make()
    with gm.watch(model, optimizer, strict=True) as monitor:
        backward(model, data[0])
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), math.inf)
        optimizer.step()
    frame = monitor.latest
    assert frame.clip_threshold is None
    assert frame.grad_norm == frame.grad_norm_post == pytest.approx(norm.item())
    assert not frame.clipped
