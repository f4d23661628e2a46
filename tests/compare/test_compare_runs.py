"""Two runs with one known difference: it is found, where it is, and nothing else is said."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
from compared_runs import NAMES, norms_at, write_run
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.compare import compare_runs
from gradmedic.compare.comparison import LayerDifference
from gradmedic.compare.divergence import parting_place
from gradmedic.compare.pairing import paired
from gradmedic.compare.rendering import render_text
from gradmedic.compare.settings import differences
from gradmedic.errors import InputError
from gradmedic.facts import Facts
from gradmedic.record import MemoryRecorder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("plain") / "A")


def test_a_copy_is_identical(plain, tmp_path):
    shutil.copytree(plain, tmp_path / "B")
    found = compare_runs(plain, tmp_path / "B")
    assert found.identical
    assert (found.differences, found.findings_a, found.findings_b) == ((), (), ())
    (course,) = found.courses
    assert (course.steps, course.last_common) == ((60, 60, 60), 59)
    assert course.first_difference is None
    assert course.partings == ()
    assert [layer.log2_ratio for layer in found.layers] == [0.0, 0.0, 0.0]


def test_a_longer_run_is_identical_as_far_as_both_go(plain, tmp_path):
    found = compare_runs(plain, write_run(tmp_path / "B", steps=80))
    assert found.identical
    assert found.courses[0].steps == (60, 80, 60)
    assert found.courses[0].last_common == 59


def test_times_are_no_difference(plain, tmp_path):
    found = compare_runs(plain, write_run(tmp_path / "B", seconds=0.2))
    assert found.identical
    assert found.costs[0].step_seconds == 0.1
    assert found.costs[1].step_seconds == 0.2
    assert math.isclose(found.costs[0].overhead, 0.02)
    assert math.isclose(found.costs[1].seconds, 59 * 0.2, rel_tol=1e-6)


def test_the_last_bit_of_the_loss(plain, tmp_path):
    def change(step, values):
        if step == 37:
            values["loss"] = float(np.nextafter(values["loss"], 3.0))

    (course,) = compare_runs(plain, write_run(tmp_path / "B", change=change)).courses
    assert not course.identical
    assert course.first_difference.step == 37
    assert [name for name, _, _ in course.first_difference.columns] == ["loss"]
    assert course.first_difference.tensor_step is None
    assert course.partings == ()


def test_where_curves_part_for_long(plain, tmp_path):
    def change(step, values):
        if step in (5, 6) or step >= 30:  # two steps are not ten
            values["loss"] *= 1.2

    (course,) = compare_runs(plain, write_run(tmp_path / "B", change=change)).courses
    assert course.first_difference.step == 5
    assert [(parting.column, parting.step) for parting in course.partings] == [("loss", 30)]
    parting = course.partings[0]
    assert parting.b == 1.2 * parting.a == 1.2 * (2.0 / 31)


def test_a_loss_that_is_lost(plain, tmp_path):
    def change(step, values):
        if step >= 40:
            values["loss"] = math.nan

    found = compare_runs(plain, write_run(tmp_path / "B", change=change))
    assert [(parting.column, parting.step) for parting in found.courses[0].partings] == [("loss", 40)]
    assert "GM201" in [finding.code for finding in found.findings_b]
    assert found.findings_a == ()
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["courses"][0]["partings"][0]["b"] == "NaN"


def lost_from(step, *, guarded):
    """Loss and gradients are NaN from a step on; a guard leaves these steps out."""

    def change(at, values):
        if at >= step:
            values |= {"loss": math.nan, "grad_norm": math.nan, "skipped": guarded, "nonfinite": 2}

    return change


def test_nan_that_a_guard_left_out_is_not_the_nan_that_was_used(tmp_path):
    """The recorded numbers are the same in both; the weights of one run are lost, those of the other are not."""
    write_run(tmp_path / "a", change=lost_from(40, guarded=False))
    write_run(tmp_path / "b", change=lost_from(40, guarded=True))
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    (course,) = found.courses
    assert course.first_difference.columns == (("skipped", 0.0, 1.0),)
    assert course.partings == ()  # equal NaN is no difference of the curves
    assert course.lost == (("loss", 40), ("grad_norm", 40))
    assert course.skipped_alone == ((), (20, 40))
    assert course.phases[-1].loss == (math.inf, None)
    text = render_text(found, width=200)
    assert "Skipped in B alone: 20 (first step 40); there the other's weights changed." in text
    assert "Loss is not finite in either from step 40 on." in text
    assert "NaN, NaN" not in text
    chinese = render_text(found, lang="zh", width=200)
    assert "B 跳过了 20 步（首次在第 40 步）" in chinese
    assert "从第 40 步起，损失在两者中都不是有限值。" in chinese


def test_curves_part_where_nan_is_on_one_side_alone(plain, tmp_path):
    """A has lost its weights at step 30; B's guard leaves out that step and every fifth, whose numbers are NaN too."""

    def guarded(step, values):
        if step >= 30 and step % 5 == 0:
            values |= {"loss": math.nan, "grad_norm": math.nan, "skipped": True, "nonfinite": 2}

    write_run(tmp_path / "a", change=lost_from(30, guarded=False))
    found = compare_runs(tmp_path / "a", write_run(tmp_path / "b", change=guarded))
    (course,) = found.courses
    assert course.first_difference.columns == (("skipped", 0.0, 1.0),)
    assert course.first_difference.step == 30
    assert [(parting.column, parting.step) for parting in course.partings] == [("loss", 31), ("grad_norm", 31)]
    assert course.partings[0].a != course.partings[0].a
    assert course.partings[0].b == 2.0 / 32
    assert course.lost == ()
    text = render_text(found, width=200)
    assert "Loss is NaN in A and 0.0625 in B at step 31; they differ for 10 steps or longer from there on." in text
    assert "第 31 步损失在 A 中为 NaN，在 B 中为 0.0625" in render_text(found, lang="zh", width=200)


def test_runs_that_are_lost_alike_are_identical(tmp_path):
    for name in ("a", "b"):
        write_run(tmp_path / name, change=lost_from(40, guarded=False))
    found = compare_runs(tmp_path / "a", tmp_path / "b")
    assert found.identical
    assert found.courses[0].partings == ()


def test_a_single_step_that_was_skipped_is_in_no_median(plain, tmp_path):
    def change(step, values):
        if step in (3, 4):
            values |= {"loss": math.nan, "grad_norm": math.nan, "skipped": True, "nonfinite": 2}

    write_run(tmp_path / "b", change=change)
    (course,) = compare_runs(plain, tmp_path / "b").courses
    assert course.skipped_alone == ((), (2, 3))
    assert all(math.isfinite(value) for phase in course.phases for value in (*phase.loss, *phase.grad_norm))
    assert course.partings == ()


@pytest.mark.parametrize("what", ["histogram", "module"])
def test_one_count_in_a_histogram_and_one_number_of_a_module(tmp_path, what):
    def spoil(step, values):
        if step == 33:
            values[what] = 1

    a = write_run(tmp_path / "A")
    assert compare_runs(a, write_run(tmp_path / "same")).identical
    found = compare_runs(a, write_run(tmp_path / "B", change=spoil))
    assert not found.identical
    assert found.courses[0].first_difference is None
    assert "histograms or module probes are not" in " ".join(render_text(found).split())


def test_what_is_unknown_in_both_is_no_difference(plain, tmp_path):
    def unknown(step, values):
        values["loss"] = None

    a, b = (write_run(tmp_path / name, change=unknown) for name in "AB")
    assert compare_runs(a, b).identical
    assert not compare_runs(plain, b).identical


def test_layers_by_how_far_they_are_apart(plain, tmp_path):
    found = compare_runs(plain, write_run(tmp_path / "B", scale={"b.weight": 4.0, "c.weight": 0.5}))
    assert [(layer.name, round(layer.log2_ratio, 9)) for layer in found.layers] == [
        ("b.weight", 2.0),
        ("c.weight", -1.0),
        ("a.weight", 0.0),
    ]
    assert found.courses[0].first_difference.tensors == ("b.weight", "c.weight")
    assert found.courses[0].first_difference.tensor_step == 0
    assert all(layer.steps == 60 for layer in found.layers)


def test_a_layer_that_died_comes_first(plain, tmp_path):
    found = compare_runs(plain, write_run(tmp_path / "B", scale={"a.weight": 0.0, "b.weight": 1e9}))
    assert found.layers[0].name == "a.weight"
    assert found.layers[0].log2_ratio == -math.inf


def all_lost(step, values):
    values["lost"] = 2


def test_a_run_that_was_never_finite_hides_no_number_of_the_other(plain, tmp_path):
    """The norms of the healthy run are its own; how far the other is from them is not known, which is no ratio of 1."""
    lost = write_run(tmp_path / "lost", change=all_lost)
    own = np.median([norms_at(step, NAMES) for step in range(60)], axis=0)
    for runs, healthy, ill in (((plain, lost), "a", "b"), ((lost, plain), "b", "a")):
        found = compare_runs(*runs)
        shown = {layer.name: getattr(layer, healthy) for layer in found.layers}
        assert shown == pytest.approx(dict(zip(NAMES, own, strict=True)))
        for layer in found.layers:
            assert math.isnan(getattr(layer, ill))
            assert math.isnan(layer.log2_ratio)
            assert (layer.steps, sorted(layer.nonfinite)) == (0, [0.0, 1.0])
    found = compare_runs(lost, lost)
    assert all(math.isnan(layer.log2_ratio) for layer in found.layers)
    rows = [line.split() for line in render_text(found).splitlines() if line.split()[:1] == ["a.weight"]]
    assert rows == [["a.weight", "NaN", "NaN", "-", "100%,", "100%"]]


def test_runs_that_were_finite_at_different_steps_each_show_their_own_norm(tmp_path):
    def lost_when(bad):
        return lambda step, values: values.update(lost=2 * bad(step))

    a = write_run(tmp_path / "a", change=lost_when(lambda step: step < 30))
    b = write_run(tmp_path / "b", change=lost_when(lambda step: step >= 30))
    (layer,) = (each for each in compare_runs(a, b).layers if each.name == "a.weight")
    late, early = ([norms_at(step, NAMES)[0] for step in steps] for steps in (range(30, 60), range(30)))
    assert (layer.a, layer.b) == pytest.approx((np.median(late), np.median(early)))
    assert math.isnan(layer.log2_ratio)


def test_a_layer_of_unknown_distance_comes_before_those_that_are_known():
    unknown, known = (LayerDifference("x", ratio, 1.0, 1.0, 1, (0.0, 0.0)) for ratio in (math.nan, -3.0))
    assert (unknown.distance, known.distance) == (math.inf, 3.0)


def test_tables_kept_at_other_steps(plain, tmp_path):
    b = write_run(tmp_path / "B", every=4, scale={"b.weight": 2.0})
    found = compare_runs(plain, b)
    assert {layer.steps for layer in found.layers} == {15}
    assert found.layers[0].log2_ratio == 1.0
    assert found.courses[0].steps == (60, 60, 60)


def test_other_models(plain, tmp_path):
    found = compare_runs(plain, write_run(tmp_path / "B", names=("a.weight", "z.weight")))
    assert [layer.name for layer in found.layers] == ["a.weight"]
    assert found.tensors == (2, 1, 1)


def test_another_name_of_the_optimizer(plain, tmp_path):
    found = compare_runs(plain, write_run(tmp_path / "B", optimizer="opt"))
    assert [(course.a, course.b, course.identical) for course in found.courses] == [("adam", "opt", True)]


def test_no_step_in_common(plain, tmp_path):
    found = compare_runs(plain, write_run(tmp_path / "B", steps=0))
    assert not found.identical
    assert found.courses == ()
    assert found.only_a == ("adam",)


def test_what_was_set_differently(tmp_path):
    model = [{"name": "fc", "class": "Linear", "parameters": {"weight": {"shape": [4, 2], "dtype": "float32"}}}]
    wider = [{"name": "fc", "class": "Linear", "parameters": {"weight": {"shape": [8, 2], "dtype": "float32"}}}]
    a = write_run(
        tmp_path / "A",
        steps=2,
        meta={"command": ["python", "t.py", "--lr", "1"], "torch": "2.6", "settings": {"every": 1}, "models": model},
    )
    b = write_run(
        tmp_path / "B",
        steps=2,
        lr=0.2,
        meta={
            "command": ["python", "t.py", "--lr", "2", "-v"],
            "torch": "2.7",
            "settings": {"every": 5},
            "models": wider,
        },
    )
    found = compare_runs(a, b)
    assert [(each.section, each.key, each.a, each.b) for each in found.differences] == [
        ("command", "--lr", "1", "2"),
        ("command", "-v", None, "on"),
        ("settings", "every", "1", "5"),
        ("optimizer", "adam: lr", "0.1", "0.2"),
        ("model", "fc", "Linear, weight 4x2 float32", "Linear, weight 8x2 float32"),
        ("environment", "torch", "2.6", "2.7"),
    ]


@pytest.mark.parametrize("damaged", [None, 7, "x", [1], {"models": 3, "command": "x", "settings": None}])
def test_a_damaged_description_is_survived(damaged):
    meta = damaged if isinstance(damaged, dict) else {"models": damaged, "command": damaged, "settings": damaged}
    assert isinstance(differences((meta, {}), (None, None), []), list)


def test_runs_in_memory():
    recorders = [MemoryRecorder(meta={}) for _ in range(2)]
    found = compare_runs(recorders[0].run, recorders[1].run)
    assert (found.a, found.b) == ("A", "B")
    assert not found.identical


@pytest.mark.parametrize(("words", "message"), [({"tolerance": 0}, "tolerance"), ({"sustained": 0}, "sustained")])
def test_wrong_arguments(plain, words, message):
    with pytest.raises(InputError, match=message):
        compare_runs(plain, plain, **words)


numbers = st.one_of(st.sampled_from([0.0, 1.0, 1.04, 1.2, math.inf, math.nan]), st.floats(0.5, 2.0))


@settings(deadline=None, max_examples=100)
@given(st.lists(st.tuples(numbers, numbers, st.booleans()), max_size=20), st.integers(1, 5))
def test_parting_is_what_its_words_say(rows, sustained):
    a, b = (np.array([row[at] for row in rows]) for at in (0, 1))
    known = np.array([row[2] for row in rows], dtype=bool)

    def far(at):
        x, y = a[at], b[at]
        if math.isfinite(x) and math.isfinite(y):
            return abs(x - y) > 0.05 * max(abs(x), abs(y))
        return math.isfinite(x) != math.isfinite(y)

    places = [at for at in range(len(rows)) if known[at]]
    expected = None
    for start, at in enumerate(places):
        run = [far(place) for place in places[start : start + sustained]]
        if all(run) and (len(run) == sustained or start + len(run) == len(places)):
            expected = at
            break
    assert parting_place(a, b, known, 0.05, sustained) == expected


def test_what_goes_on_neither_begins_a_parting_nor_ends_it():
    a, b = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 1.0]), np.array([1.0, 1.0, 2.0, 1.0, 2.0, 1.0])
    known = np.ones(6, dtype=bool)
    goes_on = np.array([False, True, False, True, False, False])
    assert parting_place(a, b, known, 0.05, 3) is None
    assert parting_place(a, b, known, 0.05, 3, goes_on) == 2
    assert parting_place(a, b, known, 0.05, 4, goes_on) is None
    assert parting_place(a, a, known, 0.05, 1, goes_on) is None


def test_pairing():
    assert paired(["G", "D"], ["D", "G"]) == ([("G", "G"), ("D", "D")], [], [])
    assert paired([], ["x"]) == ([], [], ["x"])


def test_names_are_in_execution_order(plain, tmp_path):
    scale = dict.fromkeys(NAMES, 2.0)
    found = compare_runs(plain, write_run(tmp_path / "B", scale=scale))
    assert found.courses[0].first_difference.tensors == NAMES


def test_a_setting_of_one_parameter_group_is_compared_by_itself():
    def of(decay):
        entry = {"class": "AdamW", "defaults": {"weight_decay": 0.01}, "groups": [{}, {"weight_decay": decay}]}
        return Facts(optimizers={"adam": entry})

    (found,) = differences(({}, {}), (of(0.0), of(0.1)), [("adam", "adam")])
    assert (found.key, found.a, found.b) == ("adam: groups.1.weight_decay", "0.0", "0.1")
