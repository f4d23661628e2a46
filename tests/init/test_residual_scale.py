"""A learned scale at the end of a branch: the identity at first, one number or one a channel."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic.errors import InputError


def test_a_block_begins_as_the_identity_and_learns():
    x = torch.randn(3, 4)
    layer, scale = nn.Linear(4, 4), gm.residual_scale()
    out = x + scale(layer(x))
    assert torch.equal(out, x)
    out.sum().backward()
    assert scale.scale.grad == pytest.approx(float(layer(x).detach().sum()), rel=1e-5)
    assert bool((layer.weight.grad == 0).all())


@pytest.mark.parametrize(("dim", "shape"), [(-1, (2, 5, 3)), (1, (2, 3, 4, 4)), (0, (3, 2)), (-2, (2, 3, 4))])
def test_channels(dim, shape):
    scale = gm.residual_scale(0.1, channels=3, dim=dim)
    with torch.no_grad():
        scale.scale.copy_(torch.tensor([1.0, 2.0, 3.0]))
    x = torch.randn(shape)
    expected = torch.stack([(i + 1) * part for i, part in enumerate(x.unbind(dim))], dim)
    torch.testing.assert_close(scale(x), expected)
    assert torch.equal(gm.residual_scale(0.1, channels=3).scale, torch.full((3,), 0.1))


def test_it_is_an_ordinary_module():
    scale = gm.residual_scale(0.5, channels=2)
    assert list(scale.state_dict()) == ["scale"]
    assert "channels=2" in repr(scale)
    assert gm.init.suggest(nn.Sequential(nn.Linear(2, 2), scale)).select("1")[0].scheme == "keep"
    with pytest.raises(InputError, match="channels"):
        gm.residual_scale(channels=0)
