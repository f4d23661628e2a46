"""A policy of its own for each part of the model."""

from __future__ import annotations

import math

import pytest
import torch
from clip_loop import Treated, bits, same_state
from clip_models import Model
from clip_reference import assert_close, clipped, dense64
from torch import nn

import gradmedic as gm
from gradmedic.clip import chain, ema_ratio, layers, norm, value
from gradmedic.clip.admission import check_patterns
from gradmedic.clip.state import export_state, import_state

torch.manual_seed(0)
MODEL = Model()
NAMES = [name for name, _ in MODEL.named_parameters()]


def gradients(seed=0, size=3.0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(p.shape, generator=generator) * size for p in MODEL.parameters()]


def after(transform, given):
    loop = Treated(transform, MODEL)
    return loop, dict(zip(NAMES, loop.step(given), strict=True))


def jointly(given, limit, chosen):
    """Numpy: the chosen tensors clipped by their joint norm."""
    arrays = dict(zip(NAMES, map(dense64, given), strict=True))
    names = [name for name in NAMES if chosen(name)]
    return dict(zip(names, clipped([arrays[name] for name in names], limit), strict=True))


def check(found, *expected):
    """Everything as expected, and the rest untouched."""
    together = {name: array for part in expected for name, array in part.items()}
    for name, given in zip(NAMES, gradients(), strict=True):
        if name in together:
            assert_close([dense64(found[name])], [together[name]], rtol=1e-6)
        else:
            assert bits(found[name]) == bits(given), name


def test_a_number_limits_the_joint_norm_of_each_matched_module():
    _, found = after(layers({"encoder.*.self_attn": 0.5, "embed": 1.0}), gradients())
    check(
        found,
        jointly(gradients(), 0.5, lambda n: n.startswith("encoder.0.self_attn")),
        jointly(gradients(), 0.5, lambda n: n.startswith("encoder.1.self_attn")),
        jointly(gradients(), 1.0, lambda n: n == "embed.weight"),
    )


def test_a_transform_decides_about_all_that_its_pattern_matches():
    _, found = after(layers({"encoder.*.self_attn": norm(0.5)}, default=norm(2.0)), gradients())
    check(
        found,
        jointly(gradients(), 0.5, lambda n: "self_attn" in n),
        jointly(gradients(), 2.0, lambda n: "self_attn" not in n),
    )


def test_a_default_is_joint_and_a_number_is_enough():
    _, found = after(layers({"head": value(0.1)}, default=2.0), gradients())
    check(
        found,
        {n: dense64(g).clip(-0.1, 0.1) for n, g in zip(NAMES, gradients(), strict=True) if n.startswith("head")},
        jointly(gradients(), 2.0, lambda n: not n.startswith("head")),
    )


def test_kinds_of_modules():
    """Attention, embeddings, recurrent layers, norms and the output, each with its own."""
    policies = {"MultiheadAttention": 0.5, "Embedding": 0.1, "RNN": 0.4, "norm": 0.3, "output": 0.2}
    _, found = after(layers(policies), gradients())
    parts = [
        jointly(gradients(), limit, lambda n, key=key: n.startswith(key))
        for key, limit in [
            ("encoder.0.self_attn", 0.5),
            ("encoder.1.self_attn", 0.5),
            ("embed", 0.1),
            ("rnn", 0.4),
            ("encoder.0.norm", 0.3),
            ("encoder.1.norm", 0.3),
            ("head", 0.2),
        ]
    ]
    check(found, *parts)


@pytest.mark.parametrize("turned", [False, True])
def test_the_most_specific_pattern_wins_in_whatever_order(turned):
    policies = {"Linear": 9.0, "MultiheadAttention": 0.5, "encoder.*": 0.7, "encoder.1.self_attn": 0.2}
    policies = dict(reversed(policies.items())) if turned else policies
    _, found = after(layers(policies), gradients())
    check(
        found,
        jointly(gradients(), 9.0, lambda n: n.startswith("head")),
        jointly(gradients(), 0.7, lambda n: n.startswith("encoder.0.")),
        jointly(gradients(), 0.7, lambda n: n.startswith("encoder.1.") and "self_attn" not in n),
        jointly(gradients(), 0.2, lambda n: n.startswith("encoder.1.self_attn")),
    )


def test_of_equally_specific_patterns_the_first_wins():
    for first, second, limit in (("*bias", "head*", 0.1), ("head*", "*bias", 0.1)):
        _, found = after(layers({first: norm(limit, per="tensor"), second: norm(7.0)}), gradients())
        assert found["head.bias"].norm().item() == pytest.approx(limit, rel=1e-4)


def test_a_whole_modules_number_may_be_infinite():
    _, found = after(layers({"head": math.inf}, default=norm(1.0)), gradients())
    check(found, jointly(gradients(), 1.0, lambda n: not n.startswith("head")))


def test_a_sick_part_leaves_the_others_to_their_policies():
    """R4: a NaN in the embedding neither stops nor changes the clip of the head."""
    given = gradients()
    given[NAMES.index("embed.weight")][0, 0] = math.nan
    _, found = after(layers({"embed": 1.0, "head": 1.0}, default=norm(5.0)), given)
    healthy = jointly(given, 1.0, lambda n: n.startswith("head"))
    assert_close([dense64(found[n]) for n in healthy], list(healthy.values()), rtol=1e-6)
    others = jointly(given, 5.0, lambda n: not n.startswith(("head", "embed")))
    assert_close([dense64(found[n]) for n in others], list(others.values()), rtol=1e-6)
    assert bits(found["embed.weight"]) == bits(given[NAMES.index("embed.weight")])


def test_clipped_is_told_whichever_part_it_was():
    for policies, expected in (({"head": 0.1}, True), ({"head": 1e9}, False), ({"head": norm(0.1)}, True)):
        loop, _ = after(layers(policies), gradients())
        assert bool(loop.decision.clipped) is expected
        assert loop.decision.threshold is None


def test_layers_within_layers_and_a_method_by_unit():
    inner = layers({"*.weight": 0.1}, default=norm(0.2))
    _, found = after(layers({"head": inner, "conv": norm(0.3, per="unit")}), gradients())
    assert found["head.weight"].norm().item() == pytest.approx(0.1, rel=1e-4)
    assert found["head.bias"].norm().item() == pytest.approx(0.2, rel=1e-4)
    assert found["conv.weight"].flatten(1).norm(dim=1).tolist() == pytest.approx([0.3] * 4, rel=1e-4)
    untouched = [n for n in NAMES if not n.startswith(("head", "conv"))]
    assert all(bits(found[n]) == bits(gradients()[NAMES.index(n)]) for n in untouched)


@pytest.mark.parametrize(
    ("policies", "default", "scope"),
    [
        ({"head": 1.0}, None, "model"),
        ({"head": norm(1.0, per="tensor")}, None, "tensor"),
        ({"head": norm(1.0, per="tensor")}, 1.0, "model"),
        ({"head": norm(1.0, per="tensor")}, value(1.0), "tensor"),
    ],
)
def test_scope(policies, default, scope):
    """Where optimizers step inside backward, only what treats every tensor by itself will do."""
    assert layers(policies, default).scope == scope


def test_needs_and_skips_are_those_of_the_parts():
    made = layers({"head": gm.clip.spike_clip(), "embed": gm.guard.skip_nonfinite()})
    assert made.needs == {"second_moment"}
    assert made.may_skip


def test_a_guard_on_a_part_looks_at_that_part_only():
    transform = layers({"head": gm.guard.skip_nonfinite()})
    for name, skipped in (("head.bias", True), ("embed.weight", False)):
        given = gradients()
        given[NAMES.index(name)].view(-1)[0] = math.nan
        loop, _ = after(transform, given)
        assert bool(loop.decision.skip) is skipped


def test_histories_are_per_part():
    loop = Treated(layers({"head": norm(ema_ratio(1.0, min_samples=1, fallback=1e9))}), MODEL)
    loop.step(gradients(1))
    held = loop.state.parts["head"].parts["threshold"].shared["mean"].item()
    expected = sum((dense64(g) ** 2).sum() for n, g in zip(NAMES, gradients(1), strict=True) if n.startswith("head"))
    assert held == pytest.approx(math.sqrt(expected))


def test_who_owns_what_is_no_state():
    """A run that is taken up with other limits, or with patterns in another order, obeys the new ones."""
    old = Treated(layers({"head": 1.0, "embed": 2.0}), MODEL)
    old.step(gradients())
    new = Treated(layers({"embed": 0.5, "head": 0.25}), MODEL)
    new.state = import_state(new.state, export_state(old.state, old.spec.names), new.spec.names)
    found = dict(zip(NAMES, new.step(gradients()), strict=True))
    check(
        found,
        jointly(gradients(), 0.5, lambda n: n == "embed.weight"),
        jointly(gradients(), 0.25, lambda n: n.startswith("head")),
    )
    assert same_state(new.state, new.transform.init(new.spec))


def test_a_pattern_that_matches_nothing_is_an_error_wherever_it_is():
    spec = Treated(norm(1.0), MODEL).spec
    for transform in (
        layers({"heads": 1.0}),
        chain(norm(1.0), layers({"head": layers({"heads": 1.0})})),
        gm.clip.warmup(1.0, layers({"heads": 1.0}), 5),
        gm.clip.dry_run(layers({"head": 1.0}, default=layers({"heads": 1.0}))),
        gm.clip.agc(exclude=["heads"]),
        gm.clip.agc(unit_dims={"heads": 1}),
    ):
        with pytest.raises(gm.InputError, match=r"'heads' matches no .*near names: head"):
            check_patterns(transform, spec)
    check_patterns(chain(norm(1.0), layers({"head": 1.0, "Conv1d": 2.0})), spec)


def test_a_pattern_may_match_another_optimizers_tensors_only():
    """Patterns are checked against all that is trained; a part's optimizer need not hold everything."""
    body = nn.Sequential(nn.Linear(2, 2))
    loop = Treated(layers({"head": 1.0, "Linear": 0.5}), body)
    one, two = loop.step([torch.full((2, 2), 9.0), torch.zeros(2)])
    assert one.norm().item() == pytest.approx(0.5, rel=1e-5)
    assert not two.any()


@pytest.mark.parametrize(
    "policies", [{}, None, 1.0, {"head": "1"}, {"head": True}, {3: 1.0}, {"": 1.0}, {"head": -1.0}]
)
def test_what_is_no_policy(policies):
    with pytest.raises(gm.InputError, match="layers"):
        layers(policies)
