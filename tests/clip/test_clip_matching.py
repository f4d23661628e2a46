"""Which tensors a pattern means, what modules are called, and where output units lie."""

from __future__ import annotations

import pytest
import torch
from clip_models import Model
from torch import nn

import gradmedic as gm
from gradmedic.clip.matching import check_matched, match
from gradmedic.clip.spec import describe_tensors, kinds_of, unit_axis


def spec_of(model: nn.Module, prefix: str = ""):
    names = [f"{prefix}.{name}" if prefix else name for name, _ in model.named_parameters()]
    return describe_tensors(list(model.parameters()), names, {prefix: model})


SPEC = spec_of(Model())


def names(pattern: str) -> list[list[str]]:
    return [[SPEC.names[at] for at in group] for group in match(pattern, SPEC).groups]


def test_a_parameters_name():
    assert names("head.weight") == [["head.weight"]]
    assert names("temperature") == [["temperature"]]


def test_a_modules_name_means_everything_below_it_as_one_group():
    assert names("encoder.0.self_attn") == [
        [f"encoder.0.self_attn.{n}" for n in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")]
    ]
    assert [len(group) for group in names("encoder")] == [16]


def test_wildcards_stand_for_dots_too_and_each_matched_module_is_a_group():
    assert [len(group) for group in names("encoder.*.self_attn")] == [4, 4]
    assert [len(group) for group in names("encoder.*")] == [8, 8]
    assert names("*.norm.bias") == [["encoder.0.norm.bias"], ["encoder.1.norm.bias"]]
    assert sum(len(group) for group in names("*")) == len(SPEC)


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("MultiheadAttention", [4, 4]),
        ("attention", [4, 4]),
        ("Embedding", [1]),
        ("embedding", [1]),
        ("LSTM", [4]),
        ("RNN", [4]),
        ("RNNBase", [4]),
        ("norm", [2, 2]),
        ("LayerNorm", [2, 2]),
        ("output", [2]),
        ("Linear", [2, 2, 2, 2, 2]),  # the projections inside attention are linear maps as well
        ("Conv1d", [2]),
        ("Model", [len(SPEC)]),
    ],
)
def test_kinds(kind, groups):
    assert [len(group) for group in match(kind, SPEC).groups] == groups


def test_names_are_whole_and_case_counts():
    assert names("head.weigh") == []
    assert names("linear") == []
    assert names("HEAD") == []


def test_a_name_wins_over_a_kind_of_the_same_word():
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.Linear(2, 2)
            self.other = nn.LayerNorm(2)

    spec = spec_of(Named())
    assert [[spec.names[at] for at in group] for group in match("norm", spec).groups] == [["norm.weight", "norm.bias"]]


def test_what_matches_nothing_is_said_with_near_names_and_kinds():
    with pytest.raises(gm.InputError, match=r"'encoder.0.selfattn' matches no.*near names: encoder.0.self_attn") as e:
        check_matched(["head", "encoder.0.selfattn"], SPEC, "clip.layers")
    assert "kinds here:" in str(e.value)
    for kind in ("MultiheadAttention", "Embedding", "LSTM", "attention", "RNN", "output"):
        assert kind in str(e.value)
    with pytest.raises(gm.InputError, match="near names: Embedding, embedding"):
        check_matched(["Embeding"], SPEC, "clip.layers")


def test_several_models_have_prefixes():
    models = {"G": nn.Linear(2, 2), "D": nn.Linear(2, 2)}
    held = [p for model in models.values() for p in model.parameters()]
    spec = describe_tensors(held, ["G.weight", "G.bias", "D.weight", "D.bias"], models)
    assert match("D", spec).groups == ((2, 3),)
    assert match("Linear", spec).groups == ((0, 1), (2, 3))
    assert match("output", spec).groups == ((0, 1), (2, 3))


def test_a_tensor_that_is_in_no_module_has_a_name_only():
    spec = describe_tensors([torch.zeros(3, 2)], ["mine"], {})
    assert (spec.tensors[0].kind, spec.tensors[0].unit_dim, spec.tensors[0].modules) == ("", 0, ())
    assert match("mine", spec).groups == ((0,),)
    with pytest.raises(gm.InputError, match=r"near names: mine$"):
        check_matched(["minne"], spec, "x")


def test_tied_weights_belong_to_their_first_place_and_a_declared_output_is_believed():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.lm_head = nn.Linear(3, 5, bias=False)
            self.last = nn.Linear(3, 3)
            self.lm_head.weight = self.embed.weight

        def get_output_embeddings(self):
            return self.lm_head

    spec = spec_of(Tied())
    assert spec.names == ("embed.weight", "last.weight", "last.bias")
    assert spec.tensors[0].kind == "Embedding"
    assert match("output", spec).groups == ()


@pytest.mark.parametrize(
    ("module", "axes"),
    [
        (nn.Linear(4, 3), {"weight": 0, "bias": None}),
        (nn.Conv1d(4, 3, 2), {"weight": 0, "bias": None}),
        (nn.Conv3d(4, 3, 2), {"weight": 0, "bias": None}),
        (nn.ConvTranspose2d(4, 3, 2), {"weight": 1, "bias": None}),
        (nn.Embedding(5, 2), {"weight": 0}),
        (nn.MultiheadAttention(4, 2), {"in_proj_weight": 0, "in_proj_bias": None}),
        (nn.LayerNorm(4), {"weight": None}),
        (nn.GRU(3, 2), {"weight_ih_l0": 0, "bias_hh_l0": None}),
    ],
)
def test_axes_of_output_units(module, axes):
    found = {tensor.name: tensor.unit_dim for tensor in spec_of(module).tensors}
    assert {name: found[name] for name in axes} == axes


def test_the_transposed_linear_map_of_transformers():
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3, 5))  # (in, out)

    assert spec_of(Conv1D()).tensors[0].unit_dim == 1
    assert unit_axis(0, ()) is None


def test_kinds_go_up_to_module():
    class Mine(nn.Linear):
        pass

    assert kinds_of(Mine(2, 2), output=True) == ("Mine", "Linear", "output")
    assert kinds_of(nn.BatchNorm2d(2))[-1] == "norm"
    assert "RNN" in kinds_of(nn.GRUCell(2, 2))
