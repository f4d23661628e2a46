"""GM2xx, GM4xx on synthetic frames."""

from __future__ import annotations

import math

import numpy as np
import pytest
from diagnosis_frames import FakeRun, fact, facts_event, frames, table

from gradmedic.clip import GradientSummary
from gradmedic.diagnosis import Engine, diagnose
from gradmedic.errors import InputError
from gradmedic.facts import Facts, InputFact
from gradmedic.guard import skip_nonfinite

NAN, INF = math.nan, math.inf
_SICK = GradientSummary.of_norms([NAN])
GUARD = skip_nonfinite().update(_SICK, skip_nonfinite().init(_SICK.spec))[0].skips[0].text


def origin(step=3, kind="forward", **more):
    return {
        "kind": "origin",
        "time": step - 0.5,
        "step": step,
        "optimizer": "SGD",
        "class": kind,
        "where": ["norm"],
        "op": "log",
    } | more


@pytest.mark.parametrize("kind", ["data", "parameter", "forward", "loss", "backward"])
def test_origin_is_named(kind):
    """R41: class, place, first step, rows."""
    run = FakeRun(frames([2.0, 1.9, 1.8, NAN, NAN], [1.0, 1.0, 1.0, NAN, NAN]), [origin(kind=kind, rows=[7])])
    found = diagnose(run)
    assert [(f.code, f.variant, f.step, f.where, f.severity) for f in found] == [
        ("GM201", kind, 3, ("norm",), "critical")
    ]


@pytest.mark.parametrize(
    ("rows", "english", "chinese"),
    [([45], "batch row 45:", "批内第 45 行"), ([4, 5], "batch rows 4, 5:", "批内第 4、5 行")],
)
def test_one_batch_row_is_singular(rows, english, chinese):
    run = FakeRun(frames([2.0, 1.9, 1.8, NAN, NAN], [1.0, 1.0, 1.0, NAN, NAN]), [origin(rows=rows)])
    assert english in diagnose(run)[0].message
    assert chinese in diagnose(run, lang="zh")[0].message


def test_without_a_probe_a_finite_loss_means_backward_and_the_deepest_tensor():
    names = ["a.weight", "b.weight", "c.weight"]
    bad = table({"norm": [0.0, 0.0, 1.0], "nan_count": [16, 3, 0]}, names)
    facts = Facts(parameters={name: fact(name, order=i) for i, name in enumerate(names)})
    made = frames([2.0, 1.9], [1.0, NAN], tensors=bad)
    made[0].tensors = table({"norm": [1.0] * 3}, names)
    found = diagnose(FakeRun(made, [facts_event(facts)]))
    assert [(f.code, f.variant, f.step, f.where) for f in found] == [("GM201", "backward", 1, ("b.weight", "a.weight"))]
    assert found[0].evidence[0].value == 19


def test_masked_nan_is_none_of_our_business():
    """R43: an origin event without a non-finite loss or gradient."""
    assert diagnose(FakeRun(frames([2.0, 1.9, 1.8, 1.7, 1.6]), [origin()])) == []


def test_calibration_is_a_note_whatever_the_scale_is_looking_for():
    """R37."""
    skipped = [True] * 5 + [False] * 60
    scale = [2.0 ** (24 - min(i, 5)) for i in range(65)]
    norms = [INF] * 5 + [1.0] * 60
    run = FakeRun(frames([2.0] * 65, norms, skipped=skipped, loss_scale=scale, nonfinite=[9] * 5 + [0] * 60))
    assert [(f.code, f.severity, f.variant) for f in diagnose(run)] == [("GM204", "info", "calibration")]


def test_an_ordinary_skip_every_so_often_is_nothing():
    skipped = [i in (120, 240) for i in range(300)]
    run = FakeRun(frames([2.0] * 300, [INF if s else 1.0 for s in skipped], skipped=skipped, loss_scale=65536.0))
    assert diagnose(run) == []


def test_scale_that_keeps_falling_is_folded_under_the_nan_that_makes_it_fall():
    n = 120
    skipped = [i >= 80 for i in range(n)]
    scale = [65536.0 * 0.5 ** max(0, i - 80) for i in range(n)]
    losses = [2.0] * 80 + [NAN] * 40
    run = FakeRun(frames(losses, [1.0] * 80 + [NAN] * 40, skipped=skipped, loss_scale=scale), [origin(80)])
    found = diagnose(run)
    assert (found[0].code, found[0].step, found[0].variant) == ("GM201", 80, "forward")
    assert [f.code for f in found[0].folded] == ["GM204"]


def test_scale_that_keeps_falling_with_a_finite_loss():
    n = 60
    scale = [65536.0 * 0.5 ** max(0, i - 30) for i in range(n)]
    run = FakeRun(frames([2.0] * n, [1.0] * 30 + [INF] * 30, skipped=[i >= 30 for i in range(n)], loss_scale=scale))
    assert [(f.code, f.severity, f.step) for f in diagnose(run)] == [("GM204", "error", 30)]


def inputs(*entries):
    return [facts_event(Facts(inputs=list(entries)))]


def test_bad_input_explains_the_nan():
    entry = InputFact("x", 0, (32, 64), nan_count=4, std=1.0)
    run = FakeRun(frames([NAN] * 3, [NAN] * 3), [*inputs(entry), origin(0, "data")])
    found = diagnose(run)
    assert [(f.code, f.where) for f in found] == [("GM202", ("x",))]
    assert [f.code for f in found[0].folded] == ["GM201"]


@pytest.mark.parametrize(
    "entry",
    [
        InputFact("mask", 0, (4, 4), inf_count=6),  # additive mask of 0 and -inf
        InputFact("image", 0, (8, 3, 32, 32), maximum=255.0, mean=120.0, std=60.0),
        InputFact("ids", 0, (8, 16), dtype="int64", maximum=30000.0, std=9000.0),
        InputFact("constant", 0, (8, 16), minimum=1.0, maximum=1.0),
    ],
)
def test_odd_but_harmless_input(entry):
    run = FakeRun(frames(list(np.linspace(2, 1, 60))), inputs(entry))
    assert [f for f in diagnose(run) if f.severity != "info"] == []


def test_explosion_before_nan_is_the_cause():
    norms = [1.0 + 0.01 * (i % 7) for i in range(60)] + [10.0 ** (i + 1) for i in range(8)] + [NAN] * 5
    losses = [2.0 - 0.01 * i for i in range(60)] + [10.0 ** (i + 1) for i in range(8)] + [NAN] * 5
    found = diagnose(FakeRun(frames(losses, norms)))
    assert [(f.code, f.variant) for f in found] == [("GM302", "time")]
    assert 60 <= found[0].step <= 62
    assert [f.code for f in found[0].folded] == ["GM201"]


def test_single_nan_out_of_the_blue_is_its_own_cause():
    losses = [2.0 - 0.01 * i for i in range(60)] + [NAN] * 5
    assert [f.code for f in diagnose(FakeRun(frames(losses, [1.0] * 60 + [NAN] * 5)))] == ["GM201"]


def test_spike_that_heals_is_no_explosion():
    norms = [1.0] * 60 + [200.0] + [1.0] * 60
    losses = [2.0 - 0.01 * i for i in range(121)]
    assert diagnose(FakeRun(frames(losses, norms))) == []


def test_limit_on_the_whole_model_is_live():
    engine = Engine(limits=5.0, strict=True)
    made = [[f.code for f in engine.on_frame(frame)] for frame in frames([2.0] * 4, [1.0, 5.0, 5.1, 9.0])]
    assert made == [[], [], ["GM412"], []]


def test_limits_by_pattern_over_tensors_and_modules():
    tensors = table({"norm": [3.0, 4.0, 1.0]}, ["enc.a.weight", "enc.b.weight", "head.weight"])
    run = FakeRun(frames([2.0] * 2, tensors=tensors))
    found = diagnose(run, limits={"enc": 4.9, "head.*": 2.0, "enc.b*": 3.9})
    assert {(f.where, f.evidence[0].value) for f in found} == {(("enc",), 5.0), (("enc.b.weight",), 4.0)}
    assert diagnose(run, limits={"enc": 5.0}) == []  # at the limit is not above it


def test_limits_of_the_record_are_the_default():
    run = FakeRun(frames([2.0] * 2, [7.0, 7.0]), meta={"limits": 3.0})
    assert [f.code for f in diagnose(run)] == ["GM412"]
    assert diagnose(run, limits=10.0) == []


@pytest.mark.parametrize("bad", [-1.0, 0, NAN, "5", True, {"a": -2.0}])
def test_limits_are_checked(bad):
    with pytest.raises(InputError, match="limits"):
        Engine(limits=bad)


def clipped_run(n=400, factor=0.01, flat=True, optimizer_class="SGD", since=0):
    clipped = [i >= since for i in range(n)]
    losses = [2.0] * n if flat else list(np.linspace(2, 1, n))
    made = frames(
        losses,
        [1.0 / factor] * n,
        clipped=clipped,
        clip_scale=[factor if c else 1.0 for c in clipped],
        clip_frequency=1.0,
        clip_threshold=1.0,
    )
    return FakeRun(made, [facts_event(Facts(optimizers={"SGD": {"class": optimizer_class}}))])


def test_over_clipping_needs_harm():
    """R65."""
    assert [(f.code, f.severity) for f in diagnose(clipped_run())] == [("GM403", "warning")]
    assert [(f.code, f.severity) for f in diagnose(clipped_run(flat=False))] == [("GM403", "info")]
    assert [(f.severity, f.variant) for f in diagnose(clipped_run(optimizer_class="Lion"))] == [("info", "sign")]
    assert diagnose(clipped_run(factor=0.5)) == []


def test_clipping_in_warm_up_is_not_counted():
    run = clipped_run()
    for frame in run.recorded[100:]:
        frame.clipped, frame.clip_scale = False, 1.0
    assert diagnose(run) == []


def treated_nan(reason, rank=None):
    made = frames([2.0, 1.9, 1.8, NAN, 1.7], [1.0, 1.0, 1.0, NAN, 1.0])
    made[3].skipped, made[3].skip_reason, made[3].nonfinite = reason is not None, reason, 1
    return FakeRun(made, [origin(kind="data", **({} if rank is None else {"rank": rank}))])


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_nobody_is_told_to_take_a_guard_that_has_skipped_the_step(lang):
    for reason, told in ((None, True), (GUARD, False)):
        [found] = diagnose(treated_nan(reason), lang=lang)
        assert ("--guard" in " ".join(remedy.text for remedy in found.remedies)) is told
        assert found.remedies


def test_the_loss_in_the_evidence_is_of_the_rank_on_which_it_began():
    run = treated_nan(None, rank=1)
    [found] = diagnose(run)
    assert "loss" not in [entry.name for entry in found.evidence]  # that of rank 1 is not known
    run.series = lambda column, optimizer, *, rank: np.array({"step": [2, 3], "loss": [1.5, 7.0]}[column])
    [found] = diagnose(run)
    assert [entry.value for entry in found.evidence if entry.name == "loss"] == [7.0]
