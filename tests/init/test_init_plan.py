"""Plans: nothing changes before `apply_`, then only what was selected; signals keep their size afterwards."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from init_models import LanguageModel, ResNet, convnet
from torch import nn

import gradmedic as gm
from gradmedic.errors import InputError
from gradmedic.init.gains import fans
from gradmedic.init.schemes import SCHEMES


def everything(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


@pytest.mark.parametrize(
    ("net", "sample"),
    [
        (convnet(), torch.randn(2, 3, 8, 8)),
        (ResNet().eval(), (torch.randn(1, 3, 8, 8),)),
        (LanguageModel(), {"ids": torch.zeros(1, 3, dtype=torch.long)}),
    ],
    ids=["positional", "tuple", "keywords"],
)
def test_suggesting_changes_nothing(net, sample):
    before, modes = everything(net), [module.training for module in net.modules()]
    random = torch.get_rng_state()
    gm.init.suggest(net, sample)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [module.training for module in net.modules()] == modes
    assert all(parameter.grad is None for parameter in net.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_buffers_that_the_forward_pass_writes_are_as_before():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = nn.Linear(2, 1)
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("seen", torch.zeros(2))

        def forward(self, x):
            self.calls += 1
            self.seen = x.detach().mean(0) + torch.rand(2)
            return self.last(x)

    net = Counting()
    seen = net.seen
    gm.init.suggest(net, torch.ones(3, 2))
    assert net.calls == 0
    assert net.seen is seen


def test_only_what_is_selected_is_written():
    net = convnet()
    before = everything(net)
    gm.init.suggest(net).select("0", "7.w*").apply_()
    changed = {name for name, value in net.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == {"0.weight", "0.bias", "7.weight"}
    assert [each.scheme for each in gm.init.suggest(net).select(scheme="he")] == ["he", "he"]
    with pytest.raises(InputError, match="matches no parameter"):
        gm.init.suggest(net).select("encoder.*")
    with pytest.raises(InputError, match="scheme"):
        gm.init.suggest(net).select(scheme="prayer")


def test_a_generator_makes_it_repeatable():
    one, other = convnet(), convnet()
    for net in (one, other):
        random = torch.get_rng_state()
        gm.init.suggest(net).apply_(torch.Generator().manual_seed(3))
        assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_parameters_stay_the_same_objects_and_trainable():
    net = LanguageModel()
    held = list(net.parameters())
    gm.init.suggest(net, torch.zeros(1, 4, dtype=torch.long)).apply_()
    assert all(a is b and a.requires_grad and a.is_leaf for a, b in zip(held, net.parameters(), strict=True))
    assert net.head.weight is net.words.weight


def test_the_padding_row_stays_zero():
    table = nn.Embedding(10, 4, padding_idx=2)
    gm.init.suggest(table).apply_()
    assert torch.equal(table.weight[2], torch.zeros(4))
    assert bool(table.weight[3].abs().sum() > 0)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.SELU, lambda: nn.LeakyReLU(0.3)])
def test_signals_and_gradients_keep_their_size_over_forty_layers(activation):
    torch.manual_seed(0)
    layers = [layer for _ in range(40) for layer in (nn.Linear(128, 128), activation())]
    net = nn.Sequential(*layers, nn.Linear(128, 4))
    x = torch.randn(64, 128)
    gm.init.suggest(net, x).apply_()
    out = net[:-1](x)
    out.square().sum().backward()
    assert 0.05 < float(out.detach().square().mean().sqrt()) < 5  # 40 layers of torch's default leave 1e-8 with ReLU
    first, last = net[0].weight.grad.norm(), net[-3].weight.grad.norm()
    assert 0.02 < float(first / last) < 50


def test_a_fresh_language_model_guesses():
    torch.manual_seed(0)
    net = LanguageModel()
    ids = torch.randint(30, (16, 12))

    @torch.no_grad()
    def loss(model):
        return float(nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()))

    before = loss(copy.deepcopy(net))
    gm.init.suggest(net, ids).apply_()
    assert before > 6  # torch's embeddings make confident logits
    assert loss(net) == pytest.approx(float(torch.log(torch.tensor(30.0))), abs=0.1)


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(8, 6, 3, groups=2), (5, 8, 9, 9)),
        (nn.ConvTranspose2d(8, 6, 4, stride=2), (5, 8, 9, 9)),
        (nn.Conv1d(8, 16, 5), (5, 8, 40)),
        (nn.Linear(30, 20), (50, 30)),
    ],
)
def test_fan_in_is_how_many_inputs_an_output_sees(module, shape):
    """Independent reference: with weights and inputs of one, an output inside is the number of its inputs."""
    weight, stride = module.weight, getattr(module, "stride", (1,))
    turned = isinstance(module, nn.ConvTranspose2d)
    with torch.no_grad():
        weight.fill_(1)
        module.bias.zero_()
        seen = module(torch.ones(shape)).max()
    whole = int(torch.tensor(stride).prod()) if turned else 1
    assert fans(weight.shape, transposed=turned, stride=whole)[0] == int(seen)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 5))
def test_what_is_written_is_not_off(inside, outside, seed):
    net = nn.Sequential(nn.Linear(inside, outside), nn.ReLU(), nn.Linear(outside, 3), nn.Tanh(), nn.Linear(3, 2))
    gm.init.suggest(net).apply_(torch.Generator().manual_seed(seed))
    assert len(gm.init.suggest(net).off) == 0


def test_the_table_names_everything():
    plan = gm.init.suggest(convnet(), torch.randn(2, 3, 8, 8))
    lines = str(plan).splitlines()
    assert len(lines) == len(plan) + 2
    assert "relu follows" in lines[1]
    assert lines[-1].endswith("off: 0 of 10")
    assert {each.scheme for each in plan} <= SCHEMES.keys()
    assert [each.name for each in plan[2:4]] == [plan[2].name, plan[3].name]


def test_meta_tensors_are_left_alone():
    net = nn.Linear(3, 4, device="meta")
    plan = gm.init.suggest(net)
    plan.apply_()
    assert len(plan.off) == 0
    assert net.weight.is_meta


def test_a_compiled_model_is_traced_as_it_is_written():
    net = convnet()
    plan = gm.init.suggest(torch.compile(net, backend="eager"), torch.randn(2, 3, 8, 8))
    assert [each.name for each in plan] == [name for name, _ in net.named_parameters()]
    assert plan.traced
