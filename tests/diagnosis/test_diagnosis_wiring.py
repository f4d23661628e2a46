"""GM1xx on synthetic facts and frames; R73's verdicts on parameters stay apart."""

from __future__ import annotations

import numpy as np
import pytest
from diagnosis_frames import FakeRun, fact, facts_event, frames, table

from gradmedic.diagnosis import Engine, Finding, diagnose
from gradmedic.facts import Facts, ParameterFact
from gradmedic.frame import NONE, NOT_VISIBLE, SEEN


def wired(*parameters, n=60, status=None, norm=None, limits=None, **facts) -> FakeRun:
    """A run whose tensors have these facts; a parameter is SEEN unless the facts say it is not reached."""
    owned = [p for p in parameters if p.optimizer and p.trainable]
    shown = status or [NONE if p.reached is False or p.received is False else SEEN for p in owned]
    norms = norm or [np.nan if s == NONE else 1.0 for s in shown]
    tensors = table({"norm": norms, "status": shown}, [p.name for p in owned])
    known = Facts(parameters={p.name: p for p in parameters}, steps_walked=3, **facts)
    losses = list(np.linspace(2.0, 1.0, n))
    return FakeRun(frames(losses, tensors=tensors), [facts_event(known)])


def only(run: FakeRun) -> Finding:
    found = diagnose(run)
    assert len(found) == 1, [f.code for f in found]
    return found[0]


IN, OUT = fact("in.weight", order=0), fact("out.weight", order=1)


def test_never_called():
    found = only(wired(IN, fact("spare.weight", reached=False, called=False, received=False), OUT))
    assert (found.code, found.variant, found.where) == ("GM101", "never_called", ("spare.weight",))
    assert found.severity == "warning"


def test_called_but_not_used_by_the_loss():
    found = only(wired(IN, OUT, fact("aux.weight", reached=False, called=True, received=False)))
    assert (found.code, found.variant) == ("GM101", "branch")


def test_bias_tied_into_an_unused_module():
    tied = fact("bias", (4,), reached=False, called=False, received=False, aliases=("spare.bias",))
    found = only(wired(IN, tied, OUT))
    assert (found.code, found.variant) == ("GM101", "tied")
    assert "spare.bias" in found.message


def test_zero_gradient():
    found = only(wired(IN, fact("masked.weight"), OUT, norm=[1.0, 0.0, 1.0]))
    assert (found.code, found.variant, found.where) == ("GM101", "zero", ("masked.weight",))


def test_used_only_in_some_steps_is_no_fault():
    run = wired(IN, fact("task.weight"), OUT)
    idle = table({"norm": [1.0, np.nan, 1.0], "status": [SEEN, NONE, SEEN]}, ["in.weight", "task.weight", "out.weight"])
    for frame in run.recorded:
        if frame.step != 45:
            frame.tensors = idle
    assert diagnose(run) == []  # said after 20 steps, withdrawn at step 45


def test_nothing_is_said_before_twenty_steps():
    run = wired(IN, fact("spare.weight", reached=False, called=False, received=False), OUT, n=19)
    assert diagnose(run) == []


def test_frozen_is_no_fault():
    assert diagnose(wired(fact("in.weight", trainable=False, optimizer=None, reached=None), OUT)) == []


@pytest.mark.parametrize("status", [NOT_VISIBLE, NONE])
def test_engine_that_keeps_gradients(status):
    """R47: not visible is neither zero nor unused, and the engine's own call is named."""
    run = wired(IN, OUT, status=[status, status], norm=[np.nan, np.nan], engine="DeepSpeed")
    found = only(run)
    assert (found.code, found.variant, found.severity) == ("GM101", "not_visible", "info")
    assert "get_global_grad_norm" in found.remedies[0].text


def test_detached_prefix_names_both_sides_of_the_cut():
    early = [fact(f"stem.{i}.weight", reached=False, called=True, received=False) for i in range(2)]
    found = only(wired(*early, fact("head.0.weight"), fact("head.1.weight"), n=5))
    assert (found.code, found.where, found.severity) == ("GM102", ("stem.1", "head.0"), "error")
    assert found.params["n"] == 2


def test_optimizer_that_never_sees_a_gradient():
    run = wired(IN, OUT, status=[NONE, NONE], norm=[np.nan, np.nan])
    assert (only(run).code, only(run).variant) == ("GM102", "nothing")


def test_optimizer_of_a_copy_says_so_once():
    """Its tensors never have a gradient, and no optimizer has those that do: one fault, seen from both ends."""
    trained = [fact(f"copy.{i}.weight", optimizer=None) for i in range(2)]
    held = [fact(f"held.{i}.weight", reached=False, received=False) for i in range(2)]
    run = wired(*held, *trained, n=30)
    found = only(run)
    assert (found.code, found.variant, [f.code for f in found.folded]) == ("GM103", "all", ["GM102"])


def test_not_in_optimizer():
    found = only(wired(fact("in.weight", optimizer=None), OUT))
    assert (found.code, found.where) == ("GM103", ("in.weight",))


def test_parameter_without_owner_and_gradient_is_a_target_network():
    assert diagnose(wired(fact("target.weight", optimizer=None, received=False, reached=False), OUT)) == []


def test_owner_that_comes_later_takes_the_finding_back():
    run = wired(fact("in.weight", optimizer=None), OUT)
    late = Facts(parameters={p.name: p for p in (IN, OUT)}, steps_walked=3)
    run.events.append(facts_event(late, time=30.0))
    assert diagnose(run) == []


def test_wholly_frozen_model():
    frozen = fact("in.weight", trainable=False, optimizer=None)
    run = FakeRun(frames([1.0] * 5), [facts_event(Facts(parameters={"in.weight": frozen}))])
    assert (only(run).code, only(run).severity) == ("GM104", "critical")


def row(template, kind="Linear", frozen=(), n=5):
    names = [template.format(chr(97 + i) if "{}" in template else i, i=i) for i in range(n)]
    return [
        ParameterFact(
            f"{name}.weight", name, kind, (4, 4), numel=16, trainable=i not in frozen, optimizer="SGD", reached=True
        )
        for i, name in enumerate(names)
    ]


@pytest.mark.parametrize("template", ["net.{i}", "fc{i}", "{}", "blocks.{i}.mlp"])
def test_a_layer_frozen_between_trained_ones_of_its_row_is_named(template):
    made = row(template, frozen=(2,))
    run = FakeRun(frames([1.0] * 5), [facts_event(Facts(parameters={p.name: p for p in made}))])
    found = next(f for f in diagnose(run) if f.severity == "warning")
    assert (found.code, found.variant, found.where) == ("GM104", "between", (made[2].name,))


@pytest.mark.parametrize(
    ("template", "kind", "frozen"),
    [
        ("net.{i}", "Linear", (0, 1, 2)),  # from the input upwards
        ("net.{i}", "Linear", (3, 4)),
        ("net.{i}", "BatchNorm2d", (2,)),
        ("embed{i}", "Embedding", (2,)),
        ("blocks.{i}.q", "Linear", (1, 2, 3)),  # more frozen than trained
    ],
)
def test_other_ways_of_freezing_are_choices(template, kind, frozen):
    made = row(template, kind, frozen)
    run = FakeRun(frames([1.0] * 5), [facts_event(Facts(parameters={p.name: p for p in made}))])
    assert [f for f in diagnose(run) if f.severity != "info"] == []


def test_a_frozen_teacher_beside_its_student_is_a_choice():
    made = [*row("student.{i}", n=3), *row("teacher.{i}", frozen=(0, 1, 2), n=3), *row("head.{i}", n=2)]
    run = FakeRun(frames([1.0] * 5), [facts_event(Facts(parameters={p.name: p for p in made}))])
    assert [f for f in diagnose(run) if f.severity != "info"] == []


def test_stale_optimizer_with_orphaned_twin():
    entry = {"optimizer": "SGD", "name": "", "shape": [4, 4], "twin": "in.weight"}
    run = wired(
        fact("in.weight", optimizer=None, received=True), stale=[entry], optimizers={"SGD": {"tensors": 1}}, n=12
    )
    run.recorded = frames([2.0] * 12)
    found = only(run)
    assert (found.code, found.severity, found.where) == ("GM105", "critical", ("in.weight",))
    assert "GM103" in [f.code for f in found.folded]


def test_tensors_of_an_unwatched_model_are_not_stale():
    stale = [{"optimizer": "SGD", "name": "", "shape": [4, 4], "twin": "in.weight"}, {"optimizer": "SGD", "twin": None}]
    assert diagnose(wired(IN, OUT, stale=stale)) == []


def no_op_run(lr=0.1, update=0.0, n=30, dtype="float32", **common) -> FakeRun:
    facts = Facts(parameters={name: fact(name, dtype=dtype) for name in ("a.weight", "b.weight")})
    tensors = table(
        {
            "norm": [1.0, 1.0],
            "update_norm": [update] * 2,
            "unchanged_frac": [float(update == 0)] * 2,
            "weight_norm": [4.0] * 2,
        },
        ["a.weight", "b.weight"],
    )
    return FakeRun(frames(list(np.linspace(2, 1, n)), tensors=tensors, lr=lr, **common), [facts_event(facts)])


def test_no_op_step():
    found = only(no_op_run())
    assert (found.code, found.step, found.severity) == ("GM106", 0, "error")


def test_no_op_needs_a_step_that_cannot_round_to_nothing():
    assert diagnose(no_op_run(lr=1e-9)) == []
    assert diagnose(no_op_run(skipped=True)) == []
    assert diagnose(no_op_run(update=1e-3)) == []


def test_bfloat16_swallows_small_updates_and_no_large_ones():
    assert only(no_op_run(dtype="bfloat16", lr=1e-3)).code == "GM205"
    found = only(no_op_run(dtype="bfloat16", lr=0.1))  # 2.5 percent of the weight: no rounding takes that
    assert (found.code, found.severity) == ("GM106", "error")
    assert [f.code for f in found.folded] == ["GM205"]


def test_missing_zero_grad_needs_three_in_a_row():
    stale = [False, True, True, False, True, True, True, False]
    run = FakeRun(frames([1.0] * 8, stale_grads=stale))
    assert (only(run).code, only(run).step) == ("GM107", 4)
    run.recorded[6].stale_grads = False
    assert diagnose(run) == []


@pytest.mark.parametrize("placement", ["after_step", "before_backward", "before_unscale", "mid_accumulation"])
def test_misplaced_clip(placement):
    """R45: said once, naming the order."""
    events = [
        {
            "kind": "clip_call",
            "time": i - 0.5,
            "step": i,
            "optimizer": "SGD",
            "api": "clip_grad_norm_",
            "placement": placement,
            "max_norm": 1.0,
        }
        for i in range(10)
    ]
    found = only(FakeRun(frames([1.0] * 10), events))
    assert (found.code, found.variant, found.step) == ("GM108", placement, 0)
    assert "(again and again, from step 0 on)" in found.message  # of each kind no more than three calls are reported
    assert "(2 times)" in only(FakeRun(frames([1.0] * 10), events[:2])).message
    assert "(1 time)" in only(FakeRun(frames([1.0] * 10), events[:1])).message
    assert diagnose(FakeRun(frames([1.0] * 10), [e | {"placement": "ok"} for e in events])) == []


def test_zero_learning_rate():
    assert (only(FakeRun(frames([1.0] * 20, lr=0.0))).code) == "GM111"
    assert diagnose(FakeRun(frames([1.0] * 20, lr=[0.0] + [0.1] * 19))) == []  # a warm-up that starts at zero
    assert diagnose(FakeRun(frames([1.0] * 60, lr=[0.1] * 50 + [0.0] * 10))) == []  # a schedule at its end


def test_scheduler_for_epochs_stepped_on_batches():
    found = only(FakeRun(frames(list(np.linspace(2, 1, 100)), lr=[0.1 * 0.1 ** (i / 3) for i in range(100)])))
    assert (found.code, found.variant) == ("GM111", "spent")
    cosine = [0.05 * (1 + np.cos(np.pi * i / 100)) for i in range(101)]
    assert diagnose(FakeRun(frames(list(np.linspace(2, 1, 101)), lr=cosine))) == []


def test_rules_may_be_chosen_by_code():
    engine = Engine(rules=["GM111"], strict=True)
    made = [f for frame in frames([float("nan")] * 20, lr=0.0) for f in engine.on_frame(frame)]
    assert [f.code for f in made] == ["GM111"]


def idle(n=20, **values) -> FakeRun:
    """An optimizer whose tensors are all frozen: nothing of them is in the frames."""
    known = Facts(optimizers={"SGD": {"class": "SGD", "tensors": 8}}, **values)
    return FakeRun(frames([1.0] * n, [None] * n), [facts_event(known)])


def test_optimizer_whose_tensors_are_all_frozen():
    found = only(idle())
    assert (found.code, found.variant, found.severity) == ("GM104", "idle", "critical")
    assert "8 tensors" in found.message
    assert diagnose(idle(n=2)) == []
    assert diagnose(idle(engine="DeepSpeed")) == [f for f in diagnose(idle(engine="DeepSpeed")) if f.code == "GM101"]


def test_late_unfreezing_takes_it_back():
    run = idle()
    for frame in run.recorded[10:]:
        frame.grad_norm = 1.0
    assert diagnose(run) == []


def test_share_is_of_what_gets_gradients():
    """A frozen backbone, 100 times as large as the rest, does not count."""
    backbone = fact("backbone.weight", (100, 100), trainable=False, reached=None, received=None)
    lost, kept = fact("lost.weight", (10, 30), optimizer=None), fact("kept.weight", (10, 10))
    found = next(f for f in diagnose(wired(backbone, lost, kept)) if f.code == "GM103")
    assert (found.severity, found.params["share"]) == ("warning", 75.0)


def test_optimizer_of_the_wrong_parameters():
    backbone = fact("backbone.weight", (100, 100), trainable=False, reached=None, received=None)
    run = wired(backbone, fact("head.weight", optimizer=None))
    run.recorded = frames([1.0] * 60, [None] * 60)
    found = next(f for f in diagnose(run) if f.code == "GM103")
    assert (found.severity, found.variant, found.params["share"]) == ("error", "all", 100.0)
    assert found.evidence[1].value == 1.0


def test_gradient_that_is_never_there_names_optimizer_and_place():
    run = wired(IN, OUT, status=[NONE, NONE], norm=[np.nan, np.nan])
    found = only(run)
    assert found.where == ("in", "out")
    assert found.message.startswith("Optimizer SGD has made 60 steps, and none of its 2 tensors")


def test_nan_is_no_zero():
    """Norms are over finite elements: a gradient that is NaN throughout has norm 0."""
    run = wired(IN, fact("b.weight"), OUT, n=80)
    sick = table({"norm": [0.0, 0.0, 1.0], "nan_count": [16, 16, 3]}, ["in.weight", "b.weight", "out.weight"])
    for frame in run.recorded[5:]:
        frame.tensors, frame.nonfinite, frame.grad_norm = sick, 35, float("nan")
    zero = table({"norm": [0.0, 0.0, 1.0]}, ["in.weight", "b.weight", "out.weight"])
    for frame in run.recorded[:5]:
        frame.tensors = zero
    found = only(run)
    assert (found.code, found.step, found.folded) == ("GM201", 5, ())


@pytest.mark.parametrize(("functional", "told"), [(False, []), (True, ["GM103"])])
def test_an_input_whose_gradient_is_wanted_is_no_forgotten_parameter(functional, told):
    """Collocation points stand beside a module; a script of bare weights may have forgotten one of them."""
    owned = ParameterFact("w", shape=(4, 4), numel=16, optimizer="SGD", received=True, reached=True)
    points = ParameterFact("xc", shape=(20, 1), numel=20, received=True, reached=True)
    run = wired(owned if functional else OUT, points)
    assert [f.code for f in diagnose(run) if f.severity != "info"] == told


def test_a_critic_that_its_generators_step_freezes_is_not_idle():
    """The facts were taken while it was frozen; its own optimizer has had its gradients."""
    run = wired(IN, OUT)
    frozen = Facts(parameters={p.name: p for p in (IN, fact("out.weight", trainable=False))}, steps_walked=3)
    run.events.append(facts_event(frozen, time=20.0))
    assert diagnose(run) == []
