"""Signs of losses, against the derivative: does lowering the root lower the loss?"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradmedic.probes.loss_graph import find_losses
from gradmedic.probes.loss_sign import sign_at_root
from gradmedic.probes.node_values import operation

TURNED = {
    "plain": (lambda loss: loss, 1),
    "minus": (lambda loss: -loss, -1),
    "twice minus": (lambda loss: (-loss).neg(), 1),
    "factor": (lambda loss: loss * 0.3, 1),
    "negative factor": (lambda loss: -1 * loss, -1),
    "negative tensor": (lambda loss: loss * torch.tensor(-2.0), -1),
    "divisor": (lambda loss: loss / -4, -1),
    "difference from a number": (lambda loss: 1 - loss, -1),
    "difference from a tensor": (lambda loss: torch.tensor(1.0) - loss, -1),
    "less a number": (lambda loss: loss - 1, 1),
    "rsub": (lambda loss: torch.rsub(loss, torch.ones(())), -1),
    "sum of parts": (lambda loss: torch.stack([loss, loss]).sum(), 1),
    "root": (lambda loss: loss.sqrt(), 1),
    "square": (lambda loss: loss**2, 1),
    "minus, scaled": (lambda loss: (-loss).mean() * 1024.0 / 4, -1),
}


def call_of(root):
    [call] = find_losses([root])
    return call


@pytest.mark.parametrize("name", TURNED)
def test_sign_is_that_of_the_derivative(name):
    turn, expected = TURNED[name]
    loss = F.cross_entropy(torch.randn(6, 3, requires_grad=True), torch.tensor([0, 1, 2, 0, 1, 2]))
    root = turn(loss)
    [slope] = torch.autograd.grad(root, loss, retain_graph=True)
    assert expected == slope.sign().item()
    assert call_of(root).sign == expected


@pytest.mark.parametrize("turn", [lambda x: x * torch.randn(6), lambda x: 1 / x, lambda x: -((x**2).neg() ** 3)])
def test_what_cannot_be_told_is_not_guessed(turn):
    loss = F.cross_entropy(torch.randn(6, 3, requires_grad=True), torch.arange(6) % 3, reduction="none")
    node, users, root = loss.grad_fn, {}, turn(loss).sum()
    queue = [root.grad_fn]
    users[root.grad_fn] = None
    for each in queue:
        for parent, _ in each.next_functions:
            if parent is not None and parent not in users and each is not node:
                users[parent] = each
                queue.append(parent)
    assert sign_at_root(node, users) == 0


def test_log_probabilities_need_one_minus():
    logits, y = torch.randn(6, 3, requires_grad=True), torch.arange(6) % 3
    picked = F.log_softmax(logits, 1).gather(1, y[:, None])
    assert call_of(picked.mean()).sign == -1
    assert call_of(-picked.mean()).sign == 1
    assert call_of((-1.0 * picked).mean()).sign == 0  # as likely a reward of -1
    assert call_of(-(picked[:, 0] * torch.randn(6)).mean()).sign == 0


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: F.mse_loss(x, torch.zeros(6, 1)),
        lambda x: ((x - torch.zeros(6, 1)) ** 2).mean(),
        lambda x: (torch.zeros(6, 1) - x).abs().mean(),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(6, 1)),
        lambda x: F.binary_cross_entropy(x.sigmoid(), torch.ones(6, 1)),
        lambda x: F.smooth_l1_loss(x, torch.zeros(6, 1)),
    ],
)
def test_losses_of_every_kind(loss):
    made = loss(nn.Linear(4, 1)(torch.randn(6, 4)))
    assert call_of(made).sign == 1
    assert call_of(-made).sign == -1
    assert operation(call_of(-made).user) in ("Neg", "Mean")


LIKELIHOODS = {
    "torch's own": (lambda m, s, y: F.gaussian_nll_loss(m, y, s.exp()), 1),
    "its negative": (lambda m, s, y: -F.gaussian_nll_loss(m, y, F.softplus(s) + 1e-3), -1),
    "distribution": (lambda m, s, y: -torch.distributions.Normal(m, s.exp()).log_prob(y).mean(), 1),
    "without its minus": (lambda m, s, y: torch.distributions.Normal(m, s.exp()).log_prob(y).mean(), -1),
    "by hand": (lambda m, s, y: ((m - y) ** 2 / (2 * s.exp() ** 2) + s).mean(), 1),
    "lowest scale": (lambda m, s, y: -((m - y) ** 2 / s.clamp(min=0.1)).mean(), -1),
    "a punished sample": (lambda m, s, y: (torch.distributions.Normal(m, s.exp()).log_prob(y) * 2.5).mean() * -1.0, 0),
    "a rewarded sample": (lambda m, s, y: (torch.distributions.Normal(m, s.exp()).log_prob(y) * -2.5).mean(), 0),
    "a divisor of any sign": (lambda m, s, y: ((m - y) ** 2 / s).mean(), 0),
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_squared_errors_over_a_variance_have_the_sign_of_the_likelihood(name):
    make, expected = LIKELIHOODS[name]
    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(6, 3)
    mean, scale = model(x).unbind(1)
    call = call_of(make(mean, scale, torch.randn(6)))
    assert (call.kind, call.sign) == ("mse", expected)
