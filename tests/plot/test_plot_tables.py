"""Statistics by layer against sums done by hand, and states that are never confused."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plot_runs import facts, frame_of, norms_of, run_of, simple_run, table

from gradmedic.errors import InputError
from gradmedic.facts import Facts, ParameterFact
from gradmedic.frame import Frame
from gradmedic.plot.metrics import METRICS
from gradmedic.plot.states import ABSENT, FROZEN, HIDDEN, LOOKS, NO_GRADIENT, NOT_FINITE, NUMBER, UNUSED, ZERO
from gradmedic.plot.tables import table_of
from gradmedic.plot.words import words
from gradmedic.report.views import Source

NAMES = ("a.weight", "a.bias", "b.0.weight", "b.1.weight")


def shown(run, metric="norm", **values):
    asked = {"per": "layer", "optimizer": None, "layers": "*", "steps": None, **values}
    return table_of(Source(run), metric, **asked)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.lists(st.floats(1e-200, 1e200), min_size=4, max_size=4), min_size=1, max_size=4))
def test_the_norm_of_a_layer_is_that_of_its_tensors_joined_and_never_overflows(norms):
    run = run_of(
        [Frame(step, "adam", grad_norm=1.0, tensors=table(NAMES, row)) for step, row in enumerate(norms)], facts(NAMES)
    )
    found = shown(run)
    assert found.names == ("a", "b.0", "b.1")
    expected = [[math.hypot(row[0], row[1]), row[2], row[3]] for row in norms]
    np.testing.assert_allclose(found.values, expected, rtol=1e-12)


def test_every_metric_of_a_layer_against_its_definition():
    norms = norms_of(4, 5)
    run = simple_run(NAMES, 5)
    two = norms[:, :2]
    joint = np.sqrt((two**2).sum(axis=1))
    expected = {
        "norm": joint,
        "max_abs": two.max(axis=1) / 2,
        "mean_abs": two.mean(axis=1) / 20,
        "rms": joint / np.sqrt(200),
        "update_ratio": joint / 100 / np.sqrt(8),
        "weight_norm": np.full(5, np.sqrt(8)),
        "zero_share": np.zeros(5),
        "cosine_prev": np.full(5, 0.5),
    }
    assert set(expected) == set(METRICS)
    for metric, values in expected.items():
        np.testing.assert_allclose(shown(run, metric).values[:, 0], values, rtol=1e-12, err_msg=metric)


def test_the_weight_norm_of_an_earlier_step_holds_until_the_next_is_measured():
    frames = [frame_of(step, NAMES, [1.0] * 4, weight_norm=2.0 if step == 0 else np.nan) for step in range(4)]
    found = shown(run_of(frames, facts(NAMES)), "update_ratio", per="tensor", steps=slice(2, None))
    np.testing.assert_allclose(found.values, 1.0 / 100 / 2)


def test_per_tensor_values_are_those_of_the_record():
    run = simple_run(NAMES, 6)
    steps, names, values = run.matrix("max_abs")
    found = shown(run, "max_abs", per="tensor")
    assert found.steps.tolist() == steps.tolist()
    np.testing.assert_array_equal(found.values, values[:, [names.index(name) for name in found.names]])


def test_what_is_no_number_is_told_apart():
    names = ("ok.w", "zero.w", "nan.w", "none.w", "hidden.w", "late.w")
    known = facts((*names, "frozen.w", "unused.w", "nowhere.w"))
    known.parameters["frozen.w"].trainable = False
    known.parameters["unused.w"].reached = False
    known.parameters["unused.w"].optimizer = "adam"
    frames = []
    for step in range(2):
        columns = {"nan_count": [0, 0, 7, 0, 0, 0], "status": [0, 0, 0, 1, 2, 0]}
        held = table(names, [1.0, 0.0, 0.5, 0.0, 0.0, 1.0], **columns)
        if step == 0:
            held = table(names[:5], [1.0, 0.0, 0.5, 0.0, 0.0], **{key: value[:5] for key, value in columns.items()})
        frames.append(Frame(step, "adam", grad_norm=1.0, tensors=held))
    found = shown(run_of(frames, known), per="tensor")
    states = {name: found.states[:, at].tolist() for at, name in enumerate(found.names)}
    assert states == {
        "ok.w": [NUMBER, NUMBER],
        "zero.w": [ZERO, ZERO],
        "nan.w": [NOT_FINITE, NOT_FINITE],
        "none.w": [NO_GRADIENT, NO_GRADIENT],
        "hidden.w": [HIDDEN, HIDDEN],
        "late.w": [ABSENT, NUMBER],
        "frozen.w": [FROZEN, FROZEN],
        "unused.w": [UNUSED, UNUSED],
        "nowhere.w": [HIDDEN, HIDDEN],
    }
    assert np.array_equal(np.isnan(found.values), found.states != NUMBER)


def test_one_sick_tensor_makes_its_layer_sick():
    run = simple_run(NAMES, 2, nan_count=[0, 1, 0, 0])
    assert shown(run).states.tolist() == [[NOT_FINITE, NUMBER, NUMBER]] * 2


def test_every_state_has_a_look_of_its_own_and_words():
    assert set(LOOKS) == {NOT_FINITE, ZERO, NO_GRADIENT, UNUSED, HIDDEN, FROZEN, ABSENT}
    assert len({look[1] for look in LOOKS.values()}) == len(LOOKS)
    for lang in ("en", "zh"):
        assert len({words(lang)[look[0]] for look in LOOKS.values()}) == len(LOOKS)


def test_two_optimizers_are_joined_by_step_and_told_apart_by_name():
    frames = []
    for step in range(3):
        frames.append(Frame(step, "g", time=2.0 * step, grad_norm=1.0, tensors=table(("g.w",), [1.0 + step])))
        frames.append(Frame(step, "d", time=2.0 * step + 1, grad_norm=1.0, tensors=table(("d.w",), [10.0 + step])))
    run = run_of(frames[:-1])
    both = shown(run)
    assert set(both.names) == {"g", "d"}
    np.testing.assert_array_equal(both.values[:, both.names.index("d")], [10.0, 11.0, np.nan])
    assert shown(run, optimizer="d").names == ("d",)


def test_steps_of_a_restart_follow_those_before_it(tmp_path):
    from gradmedic.record import Recorder, open_run

    for begin in (0, 2):
        recorder = Recorder(tmp_path, meta={}, join=begin > 0)
        for step in range(begin, begin + 3):
            recorder.put(frame_of(step, ("a.w",), [1.0 + step + 10 * begin]), keep=True)
        recorder.close()
    assert shown(open_run(tmp_path)).steps.tolist() == [0, 1, 2, 2, 3, 4]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [("*", ["a", "b.0", "b.1"]), ("b", ["b.0", "b.1"]), ("b.*", ["b.0", "b.1"]), (["a.bias", "b.1"], ["a", "b.1"])],
)
def test_patterns_of_names(pattern, expected):
    assert list(shown(simple_run(NAMES, 1), layers=pattern).names) == expected


def test_brackets_in_a_name_are_matched_as_a_whole_name_too():
    run = simple_run(("head[0].weight", "tail.weight"), 1)
    assert shown(run, layers="head[0].weight").names == ("head[0]",)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": "a.wieght"}, r"no layer or tensor matches 'a.wieght'; there are for instance: a.weight"),
        ({"layers": [1]}, "layers must be"),
        ({"per": "block"}, 'per must be "layer" or "tensor"'),
        ({"optimizer": "sgd"}, "no optimizer 'sgd' in this run; there are: adam"),
        ({"metric": "normm"}, "metric must be one of norm"),
    ],
)
def test_wrong_arguments_are_named(values, message):
    with pytest.raises(InputError, match=message):
        shown(simple_run(NAMES, 1), **values)


def test_an_empty_run_is_an_empty_table():
    found = shown(run_of([]))
    assert found.values.shape == (0, 0)
    assert shown(run_of([]), optimizer="any", layers="x").names == ()


def test_rows_known_from_facts_alone_are_there():
    known = Facts(parameters={"f.w": ParameterFact("f.w", "f", trainable=False)})
    run = run_of([frame_of(0, ("a.w",), [1.0])], known)
    assert set(shown(run).names) == {"f", "a"}
