"""Optimizer steps within optimizer steps: the outermost one counts."""

from __future__ import annotations

import threading

import torch

from gradmedic.probes.stack import StepStack


def optimizer(*tensors: torch.Tensor) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(tensors), lr=0.1)


def leaf() -> torch.Tensor:
    return torch.ones(2, requires_grad=True)


def test_a_single_step():
    """R3: begin, end, and nothing is left."""
    stack, one = StepStack(), optimizer(leaf())
    assert not stack.begin(one)
    assert stack.end(one)
    assert not stack.end(one)


def test_a_base_optimizer_inside_another():
    """R3: the step of a base optimizer that shares tensors is an inner one, and the next one by itself is not."""
    stack, shared = StepStack(), leaf()
    outer, base = optimizer(shared), optimizer(shared)
    assert not stack.begin(outer)
    assert stack.begin(base)
    assert not stack.end(base)
    assert stack.end(outer)
    assert not stack.begin(base)
    assert stack.end(base)


def test_an_optimizer_of_other_tensors_inside_a_step():
    """R36: a step made inside another one's closure on other tensors is a step of its own."""
    stack = StepStack()
    outer, other = optimizer(leaf()), optimizer(leaf())
    stack.begin(outer)
    assert not stack.begin(other)
    assert stack.end(other)
    assert stack.end(outer)


def test_a_step_that_raised_is_forgotten_when_it_begins_again():
    """R78: an optimizer that raised never ends; its next step is an outermost one, and so are its base's."""
    stack, shared = StepStack(), leaf()
    outer, base = optimizer(shared), optimizer(shared)
    stack.begin(outer)
    stack.begin(base)
    assert not stack.begin(outer)
    assert stack.begin(base)
    assert not stack.end(base)
    assert stack.end(outer)


def test_threads_do_not_see_each_other():
    """R76: the same tensors stepped in another thread at the same time are no nested step."""
    stack, shared = StepStack(), leaf()
    one, other = optimizer(shared), optimizer(shared)
    stack.begin(one)
    seen: list[bool] = []

    def work():
        seen.append(stack.begin(other))
        seen.append(stack.end(other))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False, True]
    assert stack.end(one)


def test_an_optimizer_that_is_gone_shares_nothing():
    """R54: the stack keeps no optimizer alive."""
    import gc
    import weakref

    stack, shared = StepStack(), leaf()
    dead = optimizer(shared)
    stack.begin(dead)
    reference = weakref.ref(dead)
    del dead
    gc.collect()
    assert reference() is None
    assert not stack.begin(optimizer(shared))
