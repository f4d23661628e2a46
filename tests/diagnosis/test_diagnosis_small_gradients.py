"""GM203, GM206: gradients that half precision or Adam's epsilon swallow; and zeros that mean nothing of the kind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diagnosis_frames import FakeRun, digits, fact, facts_event, frames, mlp, table, train
from diagnosis_judging import facts_with, judge, severities
from torch import nn

from gradmedic.diagnosis import diagnose
from gradmedic.diagnosis.layout import layout_of
from gradmedic.diagnosis.optimizer_facts import decays_beside, is_adam_kin, second_moment_betas
from gradmedic.diagnosis.view import View
from gradmedic.facts import Facts
from gradmedic.frame import Frame
from gradmedic.probes.graph import computes_in, walk

NAMES = ["first.weight", "second.weight"]
FLAT, FALLING = [2.3] * 100, list(np.linspace(2.3, 0.5, 100))
QUANTUM = 2.0**-24


def zeros(losses, share, largest, *, dtype="float32", kind="Linear", **common) -> FakeRun:
    """Two 10 x 10 matrices; of the first, a share of the gradient is zero and the largest element is `largest`."""
    known = facts_with([fact(NAMES[0], (10, 10), dtype=dtype, kind=kind), fact(NAMES[1], (10, 10))], "SGD")
    known.float16 = common.pop("float16", True)
    made = frames(losses, **common)
    for step, frame in enumerate(made):
        part = share[step] if isinstance(share, list) else share
        columns = {"norm": [1.0, 1.0], "max_abs": [largest, 1.0], "zero_count": [round(100 * part), 0]}
        frame.tensors = table(columns | {"numel": [100, 100]}, NAMES)
    return FakeRun(made, [facts_event(known)])


@pytest.mark.parametrize(("losses", "severity"), [(FLAT, "warning"), (FALLING, "info")])
def test_underflow_in_fp16_weights(losses, severity):
    found = judge(zeros(losses, 0.8, 1e-6, dtype="float16"), "GM203")
    assert [(f.code, f.severity, f.where, f.step) for f in found] == [("GM203", severity, ("first.weight",), 0)]
    assert found[0].params["share"] == 80
    assert "without a loss scale" in found[0].message


def test_underflow_behind_autocast_is_told_by_its_steps():
    assert severities(zeros(FLAT, 0.8, 37 * QUANTUM), "GM203") == [("GM203", "warning")]
    assert severities(zeros(FLAT, 0.8, 37.4 * QUANTUM), "GM203") == []
    scaled = zeros(FLAT, 0.8, 37 * QUANTUM / 8, loss_scale=8.0)
    assert "with its loss scale of 8" in judge(scaled, "GM203")[0].message
    assert severities(zeros(FLAT, 0.8, 37 * QUANTUM, loss_scale=65536.0), "GM203") == []


def test_growing_share_is_more_certain():
    rising = [0.55 + 0.004 * step for step in range(100)]
    confidence = [judge(zeros(FLAT, share, 1e-6, dtype="float16"), "GM203")[0].confidence for share in (0.8, rising)]
    assert confidence[0] < confidence[1]


@pytest.mark.parametrize(
    "run",
    [
        lambda: zeros(FLAT, 0.8, 0.01, dtype="float16"),
        lambda: zeros(FLAT, 0.4, 1e-6, dtype="float16"),
        lambda: zeros(FLAT, 0.8, 37 * QUANTUM, dtype="bfloat16"),
        lambda: zeros(FLAT, 0.8, 1e-6, dtype="float16", kind="Embedding"),
        lambda: zeros(FLAT, [0.8 if step % 20 else 0.0 for step in range(1, 101)], 1e-6, dtype="float16"),
        lambda: zeros(FLAT, 1.0, 0.0, dtype="float16"),
    ],
    ids=["dead units", "few", "bfloat16", "embedding", "now and then", "nothing left: no gradient at all"],
)
def test_zeros_that_are_no_underflow(run):
    assert severities(run(), "GM203") == []


@pytest.mark.parametrize(("factor", "said"), [(1e-5, True), (1.0, False)])
def test_digits_whose_gradients_go_through_fp16(factor, said):
    model = mlp(3)
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad.half().float())

    def criterion(prediction, target):
        return nn.functional.cross_entropy(prediction, target) * factor

    run = train(model, torch.optim.SGD(model.parameters(), 0.1), digits(), 60, criterion=criterion)
    found = judge(run, "GM203")
    assert [f.code for f in found] == (["GM203"] if said else [])
    assert all(f.severity == "warning" for f in found)


# GM206


def small(losses, norm, *, kind="AdamW", **defaults) -> FakeRun:
    """Two 10 x 10 matrices with this gradient norm: their rms is a tenth of it."""
    known = facts_with([fact(name, (10, 10)) for name in NAMES], kind, **defaults)
    return FakeRun(frames(losses, tensors=table({"norm": [norm, norm]}, NAMES)), [facts_event(known)])


@pytest.mark.parametrize(("norm", "said"), [(9e-7, True), (1.1e-6, False)])
def test_epsilon_from_ten_times_itself(norm, said):
    found = judge(small(FLAT, norm, eps=1e-8), "GM206")
    assert [(f.code, f.severity) for f in found] == ([("GM206", "warning")] if said else [])
    if said:
        assert found[0].params["kept"] == pytest.approx(100 * 9e-8 / (9e-8 + 1e-8))
        assert found[0].params["suggested"] == 1e-10


@pytest.mark.parametrize(
    "run",
    [
        lambda: small(FALLING, 1e-7, eps=1e-8),
        lambda: small(FLAT, 0.0, eps=1e-8),
        lambda: small(FLAT, 1e-7, kind="SGD", eps=1e-8),
        lambda: small(FLAT, 1e-7),
        lambda: small([1e-4] * 100, 1e-7, eps=1e-8),
    ],
    ids=["falls", "no gradient", "SGD", "epsilon not known", "solved"],
)
def test_epsilon_that_does_no_harm(run):
    assert severities(run(), "GM206") == []


def test_digits_with_a_large_epsilon():
    model = mlp(3)
    found = diagnose(train(model, torch.optim.Adam(model.parameters(), 1e-3, eps=100.0), digits(), 110))
    assert [f.code for f in found] == ["GM206"]
    assert found[0].params["suggested"] < 1e-3


def test_clip_that_pushes_adam_to_its_epsilon():
    """R65: a clip far below the norm is blamed, not the epsilon that its gradients end up at."""
    model = mlp(3)
    found = diagnose(train(model, torch.optim.Adam(model.parameters(), 1e-4), digits(), 170, clip=1e-8))
    assert [(f.code, [g.code for g in f.folded]) for f in found] == [("GM403", ["GM206"])]


def test_usual_epsilon_on_converging_digits_is_quiet():
    model = mlp(3)
    assert severities(train(model, torch.optim.Adam(model.parameters(), 3e-3), digits(), 100), "GM206") == []


# What the facts say


def view(kind: str, **defaults) -> View:
    facts = facts_with([fact(name) for name in NAMES], kind, **defaults)
    return View(Frame(0, "SGD"), None, layout_of(tuple(NAMES), facts), facts)


@pytest.mark.parametrize(
    ("kind", "defaults", "beta"),
    [
        ("AdamW", {"betas": [0.9, 0.95]}, 0.95),
        ("Adam", {"betas": (0.9, 0.999)}, 0.999),
        ("RMSprop", {"alpha": 0.99}, 0.99),
        ("SGD", {"betas": [0.9, 0.95]}, None),
        ("AdamW", {}, None),
        ("Adamax", {"betas": [0.9, 0.999]}, None),
        ("AdamW", {"betas": [0.9, 1.0]}, None),
    ],
)
def test_second_moment(kind, defaults, beta):
    found = second_moment_betas(view(kind, **defaults))
    assert (found is None) if beta is None else (found.tolist() == [beta, beta])


def test_kinds():
    assert decays_beside(view("AdamW"))
    assert decays_beside(view("Adam", decoupled_weight_decay=True))
    assert not decays_beside(view("Adam", decoupled_weight_decay=False))
    assert not decays_beside(view("SGD"))
    assert is_adam_kin(view("FusedAdam"))
    assert not is_adam_kin(view("Adafactor"))


@pytest.mark.parametrize(("float16", "loss", "told"), [(True, 2e-6, True), (False, 2e-6, False), (True, 0.0, False)])
def test_gradients_that_are_all_zero_in_float16_have_underflowed(float16, loss, told):
    made = table(
        {"norm": [0.0, 0.0], "max_abs": [0.0, 0.0], "zero_count": [16, 4], "numel": [16, 4]}, ["a.weight", "a.bias"]
    )
    known = Facts(parameters={name: fact(name) for name in ("a.weight", "a.bias")}, steps_walked=3, float16=float16)
    found = diagnose(FakeRun(frames([loss] * 60, [0.0] * 60, tensors=made), [facts_event(known)]))
    top = [f for f in found if f.code == "GM203"]
    assert [(f.variant, f.severity, f.step) for f in top] == ([("total", "error", 0)] if told else [])
    if told:
        assert [f.code for f in top[0].folded] == ["GM101"]


def test_a_graph_that_casts_to_float16_is_known_as_such():
    for dtype, expected in ((torch.float16, True), (torch.bfloat16, False)):
        layer = torch.nn.Linear(4, 2)
        with torch.autocast("cpu", dtype=dtype):
            loss = torch.nn.functional.cross_entropy(layer(torch.randn(3, 4)), torch.tensor([0, 1, 1]))
        assert computes_in(walk([loss]), torch.float16) is expected
    assert not computes_in(walk([torch.nn.Linear(4, 2)(torch.randn(3, 4)).sum()]), torch.float16)


def test_rounding_of_float32_leaves_multiples_of_the_same_step():
    """The bias before a batch norm: its gradient is zero by theory, and rounding by 2^-24 in practice."""
    made = zeros(FLAT, 0.8, 37 * QUANTUM, float16=False)
    made.events[0]["facts"]["steps_walked"] = 3
    for frame in made.recorded:
        frame.tensors.columns["max_abs"] = np.array([37 * QUANTUM, 0.7131234])
    assert severities(made, "GM203") == []
