"""Walks of the autograd graph: what a loss reaches, in forward order, cheaply and without an end in sight."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from gradmedic.probes.graph import direct_leaves, reaches, sequence_number, walk


def test_order_is_that_of_the_forward_pass_not_of_registration():
    """R73: parameters come in the order in which the forward pass first used them."""
    late, early = nn.Linear(4, 4), nn.Linear(4, 4)
    loss = late(early(torch.ones(2, 4)).relu()).sum()
    found = walk([loss])
    # A bias and a weight of one layer are used by the same node; layers come in order.
    assert {id(p) for p in found.order[:2]} == {id(p) for p in early.parameters()}
    assert {id(p) for p in found.order[2:]} == {id(p) for p in late.parameters()}
    assert found.users == sorted(found.users)
    assert found.complete


def test_what_the_loss_cannot_reach_is_left_out():
    """R73: detached, unused and frozen parameters are not reached; those under a zero factor are."""
    a, b, c, d = (nn.Parameter(torch.ones(3)) for _ in range(4))
    d.requires_grad_(False)
    loss = (a * 2 + (b * 3).detach() + c * 0 + d).sum()
    assert {id(p) for p in walk([loss]).order} == {id(a), id(c)}


def test_a_leaf_as_root_and_roots_without_a_graph():
    """R73: the root may be a leaf; constants reach nothing."""
    leaf = torch.ones(1, requires_grad=True)
    assert walk([leaf]).order == [leaf]
    assert walk([torch.ones(1)]).order == []
    assert walk([]).nodes == []


def test_a_shared_parameter_counts_once_at_its_first_use():
    """R22: a weight used twice is one leaf, placed at its first use."""
    shared, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    loss = ((shared * 2) * other * shared).sum()
    assert [id(p) for p in walk([loss]).order] == [id(shared), id(other)]


def test_a_long_graph_is_walked_without_recursion():
    """R41: ten thousand operations in a row."""
    x = start = torch.ones(1, requires_grad=True)
    for _ in range(10_000):
        x = x + 1
    found = walk([x])
    assert found.order == [start]
    assert len(found.nodes) == 10_000


def test_a_walk_stops_at_its_bound():
    """R41: beyond the bound the walk says that it is not complete."""
    x = torch.ones(1, requires_grad=True)
    for _ in range(50):
        x = x * 2
    found = walk([x], limit=10)
    assert not found.complete
    assert len(found.nodes) == 10


def test_nodes_ascend_in_forward_order():
    """R41: nodes are sorted by sequence number."""
    x = torch.ones(3, requires_grad=True)
    numbers = [sequence_number(node) for node in walk([(x.exp().sin() * 2).sum()]).nodes]
    assert numbers == sorted(numbers)
    assert len(set(numbers)) == 4


def test_what_is_behind_a_root_is_found_within_a_few_steps():
    """R2: whether a loss came out of a certain operation, also when it was divided or summed since."""
    x = torch.ones(3, requires_grad=True)
    scaled = x.sum() * 1024
    loss = scaled / 4 + 1
    assert reaches(loss, {sequence_number(scaled.grad_fn)})
    assert not reaches(x.sum(), {sequence_number(scaled.grad_fn)})
    assert not reaches(torch.ones(1), {0})
    far = scaled
    for _ in range(200):
        far = far + 1
    assert not reaches(far, {sequence_number(scaled.grad_fn)}, limit=64)


def test_direct_leaves_look_through_views_and_casts():
    """R41: the weight of a linear layer is found behind its transpose and its cast."""
    weight = nn.Parameter(torch.ones(3, 3))
    hidden = nn.Parameter(torch.ones(3, 3)).exp()
    out = hidden @ weight.t()
    assert direct_leaves(out.grad_fn) == [weight]
    assert direct_leaves((hidden @ weight.t().to(torch.bfloat16).float()).grad_fn, depth=4) == [weight]
    assert direct_leaves(hidden.exp().grad_fn, depth=1) == []


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_graphs_are_walked(reentrant):
    """R41: both kinds of checkpointing are walked without recomputing anything."""
    calls: list[int] = []
    inner, outer = nn.Linear(3, 3), nn.Linear(3, 3)

    def region(x):
        calls.append(1)
        return inner(x).tanh()

    loss = outer(checkpoint(region, outer(torch.ones(2, 3)), use_reentrant=reentrant)).sum()
    reached = {id(p) for p in walk([loss]).order}
    assert {id(p) for p in outer.parameters()} <= reached
    assert ({id(p) for p in inner.parameters()} <= reached) != reentrant
    assert len(calls) == 1


def test_a_compiled_graph_is_walked():
    """R7: the one node of a compiled graph leads to its parameters."""
    torch._dynamo.reset()
    model = nn.Linear(3, 2)
    loss = torch.compile(model, backend="aot_eager")(torch.ones(4, 3)).sum()
    assert {id(p) for p in walk([loss]).order} == {id(p) for p in model.parameters()}


def test_the_walk_computes_nothing_and_keeps_nothing():
    """R29: the graph dies with its last user; the backward pass after a walk is what it would have been."""
    import weakref

    x = torch.ones(3, requires_grad=True)
    hidden = x.exp()
    loss = hidden.sum()
    found = walk([loss])
    loss.backward()
    torch.testing.assert_close(x.grad, torch.ones(3).exp())
    gone = weakref.ref(hidden)
    del hidden, loss, found
    assert gone() is None
