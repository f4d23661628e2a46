"""GM307, GM309, GM408, GM508, GM511: time, embeddings, noise, odd batches, batches in order of their classes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from diagnosis_frames import FakeRun, digits, frames, mlp, table
from diagnosis_judging import judge
from torch import nn

import gradmedic as gm
from gradmedic.diagnosis import Engine
from gradmedic.diagnosis.draft import Draft
from gradmedic.diagnosis.finding import Finding
from gradmedic.diagnosis.module_rows import SampledRow
from gradmedic.diagnosis.replay import replay
from gradmedic.diagnosis.rules.noise_dominated import agreement_of
from gradmedic.diagnosis.rules.temporal_gradient import course
from gradmedic.diagnosis.suppression import fold

FALLING = [2.0 - i / 1000 for i in range(600)]
FLAT = [2.0] * 600
DIVERGED = [2.0 - i / 1000 for i in range(200)] + [100.0] * 200


def run_of(rows, curve=FALLING, every=20, norms=None, at=None) -> FakeRun:
    """A run whose sampled steps have these rows; `rows` is a function of the step."""
    made = frames(curve, norms)
    for frame in made:
        if frame.step % every == 0 or frame.step == at:
            frame.modules = tuple(rows(frame.step))
    return FakeRun(made, [])


def said(run, code) -> list[tuple[str, str]]:
    return [(found.variant, found.severity) for found in judge(run, code)]


# -- GM307 ------------------------------------------------------------------------------------------------------------


def time_row(ratio, steps=100, module="rnn", shape=None):
    """Norms at nine times, from `ratio` at the first step to 1 at the last."""
    times = shape if shape is not None else [ratio ** (1 - point / 8) for point in range(9)]
    extra = {f"time_{point}": value for point, value in enumerate(times)} | {"steps": float(steps)}
    return {"module": module, "what": "recurrent", "call": 0, "leaf": "weight_hh_l0", "extra": extra}


def loss_row(loss=1.0, baseline=1.0, kind="cross_entropy", **more):
    extra = {"loss": loss, "baseline": baseline} | more
    return {"module": "head", "what": "loss", "call": 0, "leaf": kind, "extra": extra}


@pytest.mark.parametrize(
    ("ratio", "curve", "expected"),
    [
        (1e-3, FLAT, []),
        (1e-9, FLAT, [("vanishing", "warning")]),
        (0.0, FLAT, [("vanishing", "warning")]),
        (1e-9, FALLING, []),  # a short memory is enough
        (1e-9, DIVERGED, []),  # too little gradient throws nothing out
        (1e2, DIVERGED, []),
        (1e4, FALLING, [("exploding", "info")]),
        (1e4, FLAT, [("exploding", "warning")]),
        (1e4, DIVERGED, [("exploding", "error")]),
        (1e9, FALLING, [("exploding", "warning")]),
    ],
)
def test_gradient_over_time(ratio, curve, expected):
    times = [ratio ** (1 - point / 8) for point in range(9)] if ratio else [0.0, 0.0, *(10.0**k for k in range(-6, 1))]
    assert said(run_of(lambda _step: [time_row(ratio, shape=times)], curve), "GM307") == expected


def test_a_loss_at_the_level_of_a_constant_is_harm_and_learning_takes_it_back():
    vanishing = time_row(1e-12)
    stuck = run_of(lambda _step: [vanishing, loss_row(1.0)], FALLING)
    assert said(stuck, "GM307") == [("vanishing", "warning")]
    late = run_of(lambda step: [vanishing, loss_row(1.0 if step < 200 else 0.1)], FALLING)
    assert said(late, "GM307") == []


def test_the_course_of_a_known_decay():
    found = course(SampledRow(0, time_row(0.9**99)))
    assert found is not None
    assert (found.per_step, found.ratio, found.r2) == pytest.approx((0.9, 0.9**99, 1.0))
    overflow = course(SampledRow(0, time_row(1, shape=[math.inf] * 4 + [1e30, 1e20, 1e10, 1.0, 1.0])))
    assert overflow is not None
    assert overflow.ratio == math.inf
    assert course(SampledRow(0, time_row(1, shape=[math.nan] * 9))) is None


def test_a_gradient_that_comes_in_at_several_times_is_no_decay():
    jumps = [1e-6, 1.0, 1e-6, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert said(run_of(lambda _step: [time_row(1, shape=jumps)], FLAT), "GM307") == []


class Recurrent(nn.Module):
    def __init__(self, gain: float, **options) -> None:
        super().__init__()
        self.rnn = nn.RNN(2, 24, batch_first=True, **options)
        self.head = nn.Linear(24, 2)
        nn.init.orthogonal_(self.rnn.weight_hh_l0, gain)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


def recall(model, rate=1e-3, steps=60, length=24, early=True) -> list[Finding]:
    """Which of two symbols came at the first step (or at the last)."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    with gm.watch(model, optimizer, strict=True, modules_every=10) as monitor:
        for _ in range(steps):
            y = torch.randint(0, 2, (16,))
            x = 0.1 * torch.randn(16, length, 2)
            x[torch.arange(16), 0 if early else -1, y] += 2.0
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return monitor.diagnose()


def test_a_net_that_forgets_is_named_and_one_that_need_not_remember_is_not():
    [found, *_] = recall(Recurrent(0.5))
    assert (found.code, found.variant, found.severity, found.where) == ("GM307", "vanishing", "warning", ("rnn",))
    assert found.step <= 1
    assert [each for each in recall(Recurrent(0.5), early=False, rate=1e-2) if each.severity != "info"] == []


def test_the_gain_of_a_recurrent_weight_is_said():
    [found, *_] = recall(Recurrent(2.0, nonlinearity="relu"), rate=1e-4, steps=30, length=60)
    assert (found.code, found.variant, found.params["gain"]) == ("GM307", "exploding", pytest.approx(2.0, rel=1e-3))
    assert "gain=1" in found.remedies[0].text
    assert "a gain of 2 " in found.remedies[0].text
    unknown = judge(run_of(lambda _step: [time_row(1e9)], FALLING), "GM307")
    assert unknown[0].remedies[0].text.endswith("which keeps lengths.")


def test_what_was_said_early_is_worded_anew_at_the_end():
    """At step 0 the loss cannot have told anything yet; the reader sees the run when it is over."""
    engine = Engine(rules=["GM307"], strict=True)
    run = run_of(lambda _step: [time_row(1e9)], FALLING)
    replay(FakeRun(run.recorded[:5], []), engine)
    assert "was too short to judge" in engine.findings()[0].message
    assert "falls all the same" in judge(run, "GM307")[0].message


def test_a_net_that_explodes_before_any_update_is_no_matter_of_the_learning_rate():
    model = Recurrent(1.0, nonlinearity="relu")
    nn.init.uniform_(model.rnn.weight_hh_l0, 0.0, 6.0 / 24)
    [found, *others] = recall(model, rate=1e-2, steps=30)
    assert (found.code, found.variant) == ("GM307", "exploding")
    assert "GM401" not in {each.code for each in others}


# -- GM309 ------------------------------------------------------------------------------------------------------------


def table_row(rows=10_000, touched=16, once=0, lookups=5000, top=0.4, least=10, batches=5):
    extra = {"rows": rows, "touched": touched, "once": once, "lookups": lookups, "top_share": top, "least": least}
    extra = {key: float(value) for key, value in (extra | {"batches": batches}).items()}
    return {"module": "users", "what": "embedding", "call": 0, "leaf": "weight", "extra": extra}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [("collapsed", "warning")]),
        ({"rows": 40}, [("", "info")]),
        ({"rows": 20}, []),  # kinds, segments
        ({"touched": 300, "rows": 1000}, [("", "info")]),
        ({"touched": 600, "rows": 1000}, []),
        ({"once": 60}, []),  # new rows still turn up: a long tail
        ({"lookups": 100}, []),
        ({"batches": 2}, []),
        ({"touched": 100, "lookups": 5000, "top": 0.01, "least": 50}, []),  # positions
    ],
)
def test_rows_that_are_never_asked_for(values, expected):
    assert said(run_of(lambda _step: [table_row(**values)]), "GM309") == expected


def test_rows_that_turn_up_later_take_it_back():
    assert said(run_of(lambda step: [table_row(touched=16 if step < 100 else 9000)]), "GM309") == []


@pytest.mark.parametrize(("modulus", "expected"), [(16, {"GM309"}), (4000, set())])
def test_a_hash_that_is_too_small(modulus, expected):
    """Ids with a long tail; the healthy twin leaves a good part of the table alone."""
    net = nn.ModuleDict({"users": nn.Embedding(4000, 8), "head": nn.Linear(8, 1)})
    optimizer = torch.optim.Adagrad(net.parameters(), lr=0.1)
    draw, taste = np.random.default_rng(0), torch.randn(4000)
    with gm.watch(net, optimizer, strict=True, modules_every=20) as monitor:
        for _ in range(120):
            ids = torch.tensor(draw.zipf(1.3, 256) % 4000)
            optimizer.zero_grad()
            logits = net["head"](net["users"](ids % modulus))[:, 0]
            F.binary_cross_entropy_with_logits(logits, (taste[ids] > 0).float()).backward()
            optimizer.step()
    found = [each for each in monitor.diagnose() if each.code == "GM309" and each.severity != "info"]
    assert {each.code for each in found} == expected
    assert all(each.where == ("users",) for each in found)


# -- GM408 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.2, 3.0])
def test_agreement_is_that_of_the_noise_scale(scale):
    """Independent gradients around one mean: the cosine is 1 / (1 + trace of the noise / mean squared)."""
    draw = np.random.default_rng(0)
    mean = draw.normal(size=400)
    gradients = mean + scale * draw.normal(size=(600, 400))
    parts = [gradients[:, :100], gradients[:, 100:]]
    norms = np.stack([np.linalg.norm(part, axis=1) for part in parts], axis=1)[1:]
    cosines = np.stack([(part[1:] * part[:-1]).sum(1) for part in parts], axis=1) / (
        norms * np.stack([np.linalg.norm(part, axis=1) for part in parts], axis=1)[:-1]
    )
    expected = 1 / (1 + scale**2 * 400 / (mean @ mean))
    agreement, error, steps = agreement_of(cosines, norms)
    assert steps == 599
    assert agreement == pytest.approx(expected, abs=4 * error)


def test_unknown_gradients_have_no_agreement():
    assert agreement_of(np.full((5, 2), np.nan), np.ones((5, 2)))[2] == 0
    assert agreement_of(np.empty((0, 3)), np.empty((0, 3)))[2] == 0


def train(model, batches, steps=130, rate=0.05, every=10) -> list[Finding]:
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with gm.watch(model, optimizer, strict=True, modules_every=every) as monitor:
        for step in range(steps):
            x, y = batches(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    return monitor.diagnose()


def codes(found) -> set[str]:
    return {each.code for listed in found for each in (listed, *listed.folded) if each.severity != "info"}


def test_labels_that_are_noise_and_labels_that_are_not():
    noise = lambda _step: (torch.randn(8, 64), torch.randint(0, 10, (8,)))  # noqa: E731
    found = train(mlp(2), noise, steps=90, rate=0.02, every=50)
    assert [(each.code, each.severity) for each in found] == [("GM408", "info")]
    assert codes(train(mlp(2), digits(), steps=90, every=30)) == set()


@pytest.mark.parametrize(("agreement", "expected"), [(0.03, "warning"), (0.003, "info"), (0.1, None), (-0.2, None)])
def test_a_common_direction_that_noise_hides_and_none_at_all(agreement, expected):
    """Cosines of successive gradients with a standard error of 0.005 over 64 steps."""
    spread = [agreement + (0.04 if step % 2 else -0.04) for step in range(80)]
    made = frames([2.3 + 0.01 * (step % 3) for step in range(80)])
    for frame, cosine in zip(made, spread, strict=True):
        frame.tensors = table({"norm": [1.0], "cosine_prev": [cosine]})
    found = judge(FakeRun(made), "GM408")
    assert [each.severity for each in found] == ([expected] if expected else [])


def noisy(losses: list[float], agreement: float) -> list[Finding]:
    made = frames(losses)
    for step, frame in enumerate(made):
        frame.tensors = table({"norm": [1.0], "cosine_prev": [agreement + (0.04 if step % 2 else -0.04)]})
    return judge(FakeRun(made), "GM408")


@pytest.mark.parametrize("agreement", [0.03, 0.003])
def test_a_loss_that_is_said_not_to_fall_is_followed_to_the_end(agreement):
    flat = [2.3 + 0.01 * (step % 3) for step in range(90)]
    [found] = noisy(flat * 3, agreement)
    assert (found.params["recent_from"], found.params["recent_to"]) == (250, 269)
    assert "steps 250–269" in found.message
    assert noisy(flat + [2.3 - i / 200 for i in range(180)], agreement) == []  # a note is taken back like a warning


# -- GM508 ------------------------------------------------------------------------------------------------------------


def batch_row(kind="ids", **extra):
    return {"module": "", "what": "batch", "call": 0, "leaf": kind, "extra": {"count": 1024.0, "rows": 16.0} | extra}


USUAL = {"distinct": 50.0, "top_share": 0.1}
SPIKE = [2.0 + 0.01 * (i % 5) for i in range(300)]


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ({"distinct": 1.0, "top_share": 1.0}, [("", "warning")]),
        ({"distinct": 45.0, "top_share": 0.95}, [("", "warning")]),
        ({"distinct": 40.0, "top_share": 0.2}, []),
        ({"distinct": 5.0, "top_share": 0.2, "count": 64.0}, []),  # a short one
        ({"distinct": 60.0, "top_share": 0.1, "count": 9000.0}, []),  # a long one
    ],
)
def test_ids_of_a_batch(odd, expected):
    curve, norms = list(SPIKE), [1.0 + 0.01 * (i % 3) for i in range(300)]
    curve[210], norms[210] = 8.0, 20.0
    run = run_of(lambda step: [batch_row(**(odd if step == 210 else USUAL))], curve, norms=norms, at=210)
    assert said(run, "GM508") == expected
    if expected:
        assert judge(run, "GM508")[0].step == 210


@pytest.mark.parametrize(("largest", "expected"), [(5.0, []), (60.0, [("", "info")]), (1e30, [("", "warning")])])
def test_values_of_a_batch(largest, expected):
    curve, norms = list(SPIKE), [1.0 + 0.01 * (i % 3) for i in range(300)]
    curve[210], norms[210] = 50.0, 90.0
    run = run_of(lambda s: [batch_row("values", max_abs=largest if s == 210 else 3.0)], curve, norms=norms, at=210)
    assert said(run, "GM508") == expected


@pytest.mark.parametrize(("loss", "norm"), [(2.02, 20.0), (8.0, 1.0)])
def test_an_odd_batch_that_moves_only_one_of_the_two_is_nothing(loss, norm):
    curve, norms = list(SPIKE), [1.0 + 0.01 * (i % 3) for i in range(300)]
    curve[210], norms[210] = loss, norm
    odd = {"distinct": 1.0, "top_share": 1.0}
    run = run_of(lambda step: [batch_row(**(odd if step == 210 else USUAL))], curve, norms=norms, at=210)
    assert said(run, "GM508") == []


def test_a_row_out_of_all_scale_takes_the_blame_for_the_step():
    draw = digits()

    def batches(step):
        x, y = draw(step)
        if step == 75:
            x = x.clone()
            x[3] = 1e4
        return x, y

    [found, *others] = train(mlp(2), batches)
    assert (found.code, found.step) == ("GM508", 75)
    assert "GM401" not in {each.code for each in others}


# -- GM511 ------------------------------------------------------------------------------------------------------------


def by_class(batch=64):
    draw = digits(1797)
    x, y = draw(0)
    order = y.argsort()

    def batches(step):
        rows = order[(torch.arange(batch) + step * batch) % len(order)]
        return x[rows], y[rows]

    return batches


def test_batches_in_order_of_their_classes():
    [found, *_] = train(mlp(2), by_class(), every=5, steps=60)
    assert (found.code, found.variant, found.severity) == ("GM511", "", "warning")
    assert "GM401" not in {each.code for each in judged_roots([found])}


def judged_roots(found):
    return [each for each in found if each.severity != "info"]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"label_entropy": 0.1, "count": 64.0}, [("", "warning")]),
        ({"label_entropy": 0.9, "count": 64.0}, [("", "info")]),  # tasks one after the other
        ({"label_entropy": 2.2, "count": 64.0}, []),
        ({"label_entropy": 0.0, "count": 4.0}, []),  # a handful of labels
        ({"label_entropy": 0.0, "count": 64.0, "baseline": 0.02, "classes_seen": 2.0}, []),  # rare events
    ],
)
def test_entropy_of_a_batch(rows, expected):
    row = loss_row(**({"baseline": 2.3, "classes_seen": 10.0, "labels_seen": 3000.0, "classes": 10.0} | rows))
    assert said(run_of(lambda _step: [row]), "GM511") == expected


def test_adversaries_and_pairs_of_samples_have_one_label_a_call():
    row = loss_row(label_entropy=0.0, count=64.0, baseline=0.7, classes_seen=2.0, labels_seen=3000.0)
    assert said(run_of(lambda _step: [row, row]), "GM511") == []
    assert said(run_of(lambda _step: [row, row | {"call": 1}]), "GM511") == []


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, [("constant", "warning")]),
        ({"labels_seen": 300.0}, [("constant", "info")]),
        ({"linear": 0.0}, []),  # scores against each other: the right one comes first by design
        ({"weighted": 1.0}, []),
        ({"classes_seen": 2.0}, []),
    ],
)
def test_labels_of_one_class(more, expected):
    numbers = {"label_entropy": 0.0, "count": 64.0, "baseline": 0.0, "classes_seen": 1.0, "labels_seen": 3000.0}
    row = loss_row(**({"linear": 1.0, "weighted": 0.0, "classes": 10.0} | numbers | more))
    assert said(run_of(lambda _step: [row]), "GM511") == expected


def test_another_class_takes_it_back():
    def rows(step):
        seen = {"classes_seen": 1.0 if step < 300 else 2.0, "labels_seen": 64.0 * (step + 1), "linear": 1.0}
        return [loss_row(label_entropy=0.0, count=4.0, baseline=0.0, classes=10.0, **seen)]

    assert said(run_of(rows), "GM511") == []


def test_labels_of_one_class_in_a_training():
    draw = digits()
    [found, *_] = train(mlp(2), lambda step: (draw(step)[0], torch.full((64,), 3)))
    assert (found.code, found.variant, found.severity, found.where) == ("GM511", "constant", "warning", ("2",))


def test_one_batch_again_and_again_is_a_note():
    x, y = digits(32)(0)
    found = train(mlp(2), lambda _step: (x, y), steps=80)
    assert [(each.code, each.variant, each.severity) for each in found] == [("GM511", "repeated", "info")]
    assert "GM511" not in {each.code for each in train(mlp(2), digits(32), steps=80)}


# -- what explains what --------------------------------------------------------------------------------------------


def finding(code, step=0, variant="", **more) -> Finding:
    draft = Draft("warning", 0.7, step, variant=variant, **more)
    return Finding(
        code=code, name=code, severity=draft.severity, confidence=draft.confidence, step=step, variant=variant,
        title="", message="", optimizer="SGD",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        (finding("GM307", variant="exploding"), finding("GM401")),
        (finding("GM401", 0), finding("GM307", 50, "exploding")),
        (finding("GM307", variant="vanishing"), finding("GM301")),
        (finding("GM508", 200), finding("GM401", 200, "batch")),
        (finding("GM508", 200), finding("GM302", 201, "time")),
        (finding("GM511"), finding("GM401", 14)),
        (finding("GM510"), finding("GM408", 14)),
    ],
)
def test_causes_stand_above_what_follows_from_them(cause, effect):
    for listed in ([cause, effect], [effect, cause]):
        assert [each.code for each in fold(listed)] == [cause.code]


def test_a_step_that_was_too_large_before_is_not_the_batch_s():
    assert len(fold([finding("GM508", 200), finding("GM401", 20)])) == 2
