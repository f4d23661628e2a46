import numpy as np
import pytest
from views_runs import fact, frame, run_of

from gradmedic.report.views import Source, tensor_rows
from gradmedic.report.views.order import blocks_of


def states(run):
    return {row.name: row.state for row in tensor_rows(run)}


def test_execution_order_then_definition_then_what_only_the_record_has():
    facts = [fact("z.weight", order=1), fact("late.weight"), fact("a.weight", order=0), fact("alone.weight")]
    run = run_of([frame(0, ["late.weight", "a.weight", "bare", "z.weight"], norm=1.0)], facts=facts)
    assert [row.name for row in tensor_rows(run)] == ["a.weight", "z.weight", "late.weight", "alone.weight", "bare"]


def test_models_that_take_turns_follow_each_other_whole_and_two_optimizers_of_one_model_do_not():
    gan = [("D.0", 0, "d"), ("D.1", 2, "d"), ("G.0", 1, "g"), ("G.1", 3, "g"), ("D.2", None, None)]
    facts = [fact(f"{name}.weight", order=order, optimizer=owner) for name, order, owner in gan]
    found = [row.module for row in tensor_rows(run_of([], facts=facts))]
    assert found == ["D.0", "D.1", "D.2", "G.0", "G.1"]
    muon = [("body.0", 0, "muon"), ("body.1", 1, "adam"), ("body.2", 2, "muon"), ("head", 3, "adam")]
    facts = [fact(f"{name}.weight", order=order, optimizer=owner) for name, order, owner in muon]
    assert [row.module for row in tensor_rows(run_of([], facts=facts))] == ["body.0", "body.1", "body.2", "head"]


def test_what_the_facts_say_is_kept():
    run = run_of(
        [], facts=[fact("m.weight", shape=(3, 5), numel=15, dtype="bfloat16", aliases=("tied",), kind="Linear")]
    )
    (row,) = tensor_rows(run)
    assert (row.module, row.kind, row.shape, row.numel, row.dtype) == ("m", "Linear", (3, 5), 15, "bfloat16")
    assert (row.aliases, row.optimizer, row.trainable) == (("tied",), "adam", True)


def test_a_record_without_facts():
    run = run_of([frame(0, ["h.0.w", "h.1.w"], optimizer="sgd", norm=1.0, numel=[6, 7])])
    assert [(row.name, row.module, row.numel, row.optimizer, row.block) for row in tensor_rows(run)] == [
        ("h.0.w", "h.0", 6, "sgd", "h.0"),
        ("h.1.w", "h.1", 7, "sgd", "h.1"),
    ]


@pytest.mark.parametrize(
    ("given", "columns", "state"),
    [
        ({}, {"norm": 1.0}, "ok"),
        ({"trainable": False}, {"norm": 1.0}, "frozen"),
        ({}, {"norm": 0.0}, "zero"),
        ({}, {"norm": 0.0, "nan_count": 4}, "non-finite"),
        ({}, {"norm": 1.0, "inf_count": 1}, "non-finite"),
        ({"reached": True, "received": True}, {"norm": np.nan, "status": 1}, "no gradient"),
        ({"reached": False, "received": False}, {"norm": np.nan, "status": 1}, "unused"),
        ({"called": False}, {"norm": np.nan, "status": 1}, "unused"),
        ({"reached": False, "received": True}, {"norm": np.nan, "status": 1}, "no gradient"),
        ({}, {"norm": np.nan, "status": 2}, "not visible"),
    ],
)
def test_states_are_told_apart(given, columns, state):
    run = run_of([frame(step, ["m.weight"], **columns) for step in range(3)], facts=[fact("m.weight", **given)])
    assert states(run) == {"m.weight": state}


def test_a_tensor_that_no_optimizer_has_is_not_visible_and_one_that_the_loss_does_not_reach_unused():
    facts = [
        fact("a.weight", optimizer=None, received=True, reached=True),
        fact("b.weight", optimizer=None, reached=False, received=False),
    ]
    assert states(run_of([], facts=facts)) == {"a.weight": "not visible", "b.weight": "unused"}


def test_one_gradient_is_enough_to_be_neither_zero_nor_without():
    frames = [frame(0, ["w"], norm=0.0), frame(1, ["w"], norm=np.nan, status=1), frame(2, ["w"], norm=1e-30)]
    assert states(run_of(frames)) == {"w": "ok"}


def test_a_skipped_step_does_not_make_a_tensor_non_finite():
    skipped = {"skipped": True, "skip_reason": "overflow"}
    frames = [
        frame(0, ["w"], norm=1.0),
        frame(1, ["w"], norm=1.0, nan_count=2, scalars=skipped),
        frame(2, ["w"], norm=1.0),
        frame(1, ["v"], optimizer="other", time=2.5, norm=1.0, nan_count=2),
    ]
    run = run_of(frames)
    assert states(run) == {"w": "ok", "v": "non-finite"}
    assert Source(run).skipped.tolist() == [False, True, False, False]


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("encoder.layers.0.attn.weight", "encoder.layers.0"),
        ("encoder.layers.1.attn.0.weight", "encoder.layers.1"),
        ("encoder.layers.1.attn.1.weight", "encoder.layers.1"),
        ("single.0.fc.weight", "single.0"),
        ("head.weight", ""),
        ("a.b.weight", "a"),
        ("alone", ""),
    ],
)
def test_blocks(name, block):
    names = [
        *("encoder.layers.0.attn.weight", "encoder.layers.1.attn.0.weight", "encoder.layers.1.attn.1.weight"),
        *("single.0.fc.weight", "head.weight", "a.b.weight", "alone"),
    ]
    assert blocks_of(names)[name] == block


def test_an_empty_run():
    assert tensor_rows(run_of([])) == []
