"""Suggestions: the scheme that suits each parameter, seen in a run or read off the order of modules."""

from __future__ import annotations

import math

import pytest
import torch
from init_models import Functional, LanguageModel, ResNet, convnet
from torch import nn

import gradmedic as gm
from gradmedic.errors import InputError


def schemes(plan):
    return {each.name: each.scheme for each in plan}


def weights(plan):
    return {each.name: each.scheme for each in plan if not each.name.endswith("bias")}


@pytest.mark.parametrize("sample", [None, torch.randn(2, 3, 8, 8)], ids=["order", "run"])
def test_convolutions_norms_and_the_last_layer(sample):
    plan = gm.init.suggest(convnet(), sample)
    assert weights(plan) == {
        "0.weight": "he",
        "1.weight": "ones",
        "4.weight": "he",
        "7.weight": "xavier",
        "10.weight": "small",
    }
    std = {each.name: each.std for each in plan}
    assert std["0.weight"] == pytest.approx(math.sqrt(2 / 27))
    assert std["4.weight"] == pytest.approx(math.sqrt(2 / (1.04 * 72)))  # a slope of 0.2 below zero
    assert std["7.weight"] == pytest.approx(math.sqrt(2 / 28))
    assert len(plan.off) == 0
    assert plan.traced is (sample is not None)


def test_functions_and_plain_matrices_are_seen_in_a_run():
    plan = gm.init.suggest(Functional(), torch.randn(4, 8))
    assert weights(plan) == {
        "matrix": "xavier",
        "turned": "he",
        "last.weight": "small",
        "second.weight": "he",
        "unused.weight": "xavier",
    }
    found = {each.name: each for each in plan}
    assert found["matrix"].reason == "tanh follows"
    assert found["second.weight"].reason == "silu follows"
    assert found["matrix"].std == pytest.approx(math.sqrt(2 / 24))
    assert found["turned"].std == pytest.approx(math.sqrt(2 / 16))


def test_transformer():
    plan = gm.init.suggest(LanguageModel(), torch.randint(30, (2, 7)))
    found = {each.name: each for each in plan}
    for block in ("blocks.0", "blocks.2"):
        assert found[f"{block}.qkv.weight"].scheme == "xavier"
        assert found[f"{block}.qkv.weight"].std == pytest.approx(math.sqrt(2 / 32))  # each of the three by itself
        assert found[f"{block}.up.weight"].reason == "gelu follows"
        assert found[f"{block}.out.weight"].scheme == found[f"{block}.down.weight"].scheme == "residual"
        assert found[f"{block}.down.weight"].std == pytest.approx(math.sqrt(2 / 80) / math.sqrt(6))  # 3 blocks of 2
    assert (found["words.weight"].scheme, found["words.weight"].std) == ("embedding", 0.02)
    assert found["words.weight"].off  # torch draws them 50 times as large
    assert (found["pos_embed"].scheme, found["pos_embed"].off) == ("embedding", False)  # all zero is a choice
    assert "head.weight" not in found  # the same tensor


def test_residual_branches_that_end_in_a_norm_begin_at_zero():
    plan = gm.init.suggest(ResNet(), torch.randn(2, 3, 8, 8))
    found = weights(plan)
    assert {name for name, scheme in found.items() if scheme == "zeros"} == {
        "blocks.0.bn2.weight",
        "blocks.1.bn2.weight",
    }
    assert found["blocks.1.down.0.weight"] == "he"  # its sum goes through a ReLU
    assert found["blocks.0.conv2.weight"] == "he"
    assert found["fc.weight"] == "small"
    assert len(plan.off) == 0


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("norm_first", [False, True])
def test_torch_transformer_layers(batch_first, norm_first):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=batch_first, norm_first=norm_first)
    found = weights(gm.init.suggest(layer, torch.randn(3, 5, 16)))
    assert found == {
        "self_attn.in_proj_weight": "xavier",
        "self_attn.out_proj.weight": "residual",
        "linear1.weight": "he",
        "linear2.weight": "residual",
        "norm1.weight": "ones",
        "norm2.weight": "ones",
    }


@pytest.mark.parametrize(
    ("module", "gates"),
    [(nn.RNN(6, 5), 1), (nn.GRU(6, 5, 2), 3), (nn.LSTM(6, 5, bidirectional=True), 4)],
)
def test_recurrent_layers(module, gates):
    plan = gm.init.suggest(module, torch.randn(7, 2, 6)).apply_()
    for each in plan:
        values = each.parameter.detach()
        if "weight_hh" in each.name:
            for block in values.chunk(gates):
                small = block if block.shape[0] <= block.shape[1] else block.T
                torch.testing.assert_close(small @ small.T, torch.eye(small.shape[0]))
            assert each.measured_std > 0
            assert float(values.std(correction=0)) == pytest.approx(each.std, rel=0.25)
        if "bias" in each.name:
            expected = torch.zeros(gates, 5)
            if gates == 4 and "bias_ih" in each.name:
                expected[1] = 1
            assert torch.equal(values.view(gates, 5), expected)


def test_cells_in_a_loop_are_no_residual_branches():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.take, self.keep = nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.head = nn.Linear(4, 2)

        def forward(self, ids):
            x, h = self.words(ids), torch.zeros(ids.shape[0], 4)
            for t in range(ids.shape[1]):
                h = torch.tanh(self.take(x[:, t]) + self.keep(h))
            return self.head(h)

    found = weights(gm.init.suggest(Net(), torch.randint(9, (2, 5))))
    assert found == {
        "words.weight": "embedding",
        "take.weight": "xavier",
        "keep.weight": "xavier",
        "head.weight": "small",
    }


def test_a_sigmoid_read_out_is_still_the_last_layer_and_a_gate_is_not():
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.value, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            return torch.sigmoid(self.last(self.value(x) * torch.sigmoid(self.gate(x))))

    found = weights(gm.init.suggest(Gated(), torch.randn(2, 4)))
    assert found == {"gate.weight": "xavier", "value.weight": "xavier", "last.weight": "small"}


@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda net: net[0].weight.mul_(30), "0.weight"),
        (lambda net: net[0].weight.mul_(0.03), "0.weight"),
        (lambda net: net[4].weight.fill_(0.1), "4.weight"),
        (lambda net: net[4].weight.add_(2), "4.weight"),
        (lambda net: net[4].bias.fill_(-10), "4.bias"),
        (lambda net: net[1].weight.fill_(9), "1.weight"),
        (lambda net: net[7].weight.fill_(math.nan), "7.weight"),
    ],
)
def test_what_is_far_off_is_flagged_and_put_right(spoil, name):
    net = convnet()
    with torch.no_grad():
        spoil(net)
    plan = gm.init.suggest(net, torch.randn(2, 3, 8, 8))
    assert [each.name for each in plan.off] == [name]
    assert any(line.startswith("!") and name in line for line in str(plan).splitlines())
    plan.off.apply_()
    assert len(gm.init.suggest(net, torch.randn(2, 3, 8, 8)).off) == 0


def test_frozen_and_unknown_parameters_are_kept():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = nn.Linear(4, 4).requires_grad_(False)
            self.temperature = nn.Parameter(torch.tensor(7.0))
            self.last = nn.Linear(4, 2)

        def forward(self, x):
            return self.last(self.backbone(x)) * self.temperature

    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    plan = gm.init.suggest(net, torch.randn(2, 4)).apply_()
    kept = {name for name, scheme in schemes(plan).items() if scheme == "keep"}
    assert kept == {"backbone.weight", "backbone.bias", "temperature"}
    assert all(torch.equal(net.state_dict()[name], before[name]) for name in kept)
    assert not torch.equal(net.last.weight, before["last.weight"])


@pytest.mark.parametrize("sample", ["x", torch.randn(2, 7), (torch.randn(2, 3, 8, 8), 1), {"x": 1}])
def test_a_sample_that_does_not_fit(sample):
    net = convnet()
    with pytest.raises(InputError, match="sample: the model could not be run"):
        gm.init.suggest(net, sample)
    assert all(module.training for module in net.modules())


@pytest.mark.parametrize("model", [None, nn.ReLU(), nn.LazyLinear(3)])
def test_what_cannot_be_initialised(model):
    with pytest.raises(InputError, match="model"):
        gm.init.suggest(model)
