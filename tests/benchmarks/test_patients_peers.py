"""The peers' rule packs, on traces made by hand: each rule fires on what it names, and only then."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.patients.peers import PEERS, autotrainer, deepchecker, sagemaker, umlaut
from benchmarks.patients.peers.deepchecker import smoothness
from benchmarks.patients.peers.trace import Trace, carried_forward, first_run_of
from benchmarks.patients.peers.verdict import Verdict, by_time

from gradmedic.facts import Facts, InputFact, LossFact, ParameterFact

NAMES = ("first.weight", "first.bias", "last.weight")
SHAPES = ((8, 4), (8,), (2, 8))
STEPS = 200


def trace(rows: list[dict[str, Any]] | None = None, **changes: Any) -> Trace:
    """A training in good order: a loss that falls smoothly, updates of a thousandth, gradients of ordinary size."""
    numel = np.array([np.prod(shape) for shape in SHAPES], dtype=float)
    loss = changes.get("loss", 2.3 * 0.97 ** np.arange(STEPS))
    base = {
        "norm": 0.01 * np.sqrt(numel), "mean_abs": np.full(3, 0.008), "std": np.full(3, 0.01),
        "zero_count": np.zeros(3), "numel": numel, "nan_count": np.zeros(3), "inf_count": np.zeros(3),
        "update_norm": 0.001 * np.sqrt(numel), "weight_norm": np.sqrt(numel),
    }  # fmt: skip
    tensors = {key: np.tile(value, (STEPS, 1)) for key, value in base.items()}
    parameters = {
        name: ParameterFact(name, name.split(".")[0], "Linear", shape, numel=int(np.prod(shape)), order=at)
        for at, (name, shape) in enumerate(zip(NAMES, SHAPES, strict=True))
    }
    numbers = {"classes": 10.0, "baseline": 2.3, "loss": 2.3}
    made = Trace(
        steps=np.arange(STEPS),
        loss=loss,
        lr=np.full(STEPS, 0.003),
        table_steps=np.arange(STEPS),
        names=list(NAMES),
        tensors=tensors,
        rows=[
            *[
                {"what": "loss", "step": step, "module": "last", "loss": loss[step], "baseline": 2.3}
                for step in range(0, STEPS, 10)
            ],
            *(rows or []),
        ],
        facts=Facts(parameters=parameters, losses=[LossFact(0, "cross_entropy", numbers=numbers)]),
    )
    for key, value in changes.items():
        if key in base:
            made.tensors[key] = np.where(np.isnan(value), made.tensors[key], value)
        else:
            setattr(made, key, value)
    return made


def only(place: int, value: float) -> Any:
    """A change of one tensor."""
    changed = np.full((STEPS, 3), np.nan)
    changed[:, place] = value
    return changed


#: A loss that stays at that of a constant prediction.
FLAT = np.full(STEPS, 2.3)


def rules(verdicts: list[Verdict]) -> dict[str, Verdict]:
    assert len({each.rule for each in verdicts}) == len(verdicts)
    return {each.rule: each for each in verdicts}


def inputs(*facts: InputFact) -> Facts:
    return Facts(parameters=trace().facts.parameters, inputs=list(facts))


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_training_in_good_order_is_left_alone(peer: Any) -> None:
    assert peer.judge(trace()) == []


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_an_empty_record_is_no_fault(peer: Any) -> None:
    empty = np.zeros(0)
    assert peer.judge(Trace(empty.astype(int), empty, empty, empty.astype(int), [], {})) == []


# -- AutoTrainer ---------------------------------------------------------------------------------------------------

JUDGED = int(autotrainer.JUDGED_FROM * STEPS) - 1


@pytest.mark.parametrize(
    ("change", "rule", "code", "step"),
    [
        ({"norm": only(0, 1e-6)}, "vanish", "GM301", JUDGED),
        ({"norm": only(0, 10.0)}, "explode", "GM302", JUDGED),
        ({"zero_count": np.full((STEPS, 3), 32.0)}, "dying ReLU", "GM303", JUDGED),
        ({}, "slow convergence", "GM402", JUDGED),
        ({"nan_count": only(0, 5.0), "lost": np.ones(STEPS, dtype=bool)}, "explode", "GM302", autotrainer.PERIOD - 1),
    ],
)
def test_autotrainer_judges_gradients_of_a_model_that_is_no_good(
    change: dict[str, Any], rule: str, code: str, step: int
) -> None:
    (found,) = autotrainer.judge(trace(loss=FLAT, **change))
    assert (found.rule, found.codes[0], found.step) == (rule, code, step)
    if rule != "slow convergence" and "lost" not in change:
        assert autotrainer.judge(trace(**change)) == []  # the model learns


def test_autotrainer_sees_swinging_and_negative_losses_and_large_outputs() -> None:
    swinging = np.where((np.arange(STEPS) // 20) % 2, 0.2, 1.5)
    (found,) = autotrainer.judge(trace(loss=swinging))
    assert (found.rule, found.codes) == ("oscillating loss", ("GM401",))
    (found,) = autotrainer.judge(trace(loss=trace().loss - 2.0))
    assert (found.rule, found.codes[0]) == ("loss below zero", "GM504")
    outputs = [
        {"what": "output", "step": 1, "module": name, "mean_abs": size} for name, size in (("a", 12.0), ("b", 1.0))
    ]
    assert autotrainer.judge(trace(outputs)) == [Verdict("abnormal data", ("GM506",), 19, ("a",))]
    assert autotrainer.judge(trace(outputs[::-1])) == []  # the last layer may


def test_autotrainer_counts_maxima_above_minima() -> None:
    assert autotrainer.oscillates(np.array([0.0, 0.5, 0.1, 0.6, 0.2, 0.7]))
    assert not autotrainer.oscillates(np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5]))
    assert not autotrainer.oscillates(np.array([0.5, 0.51, 0.5, 0.51, 0.5]))
    assert not autotrainer.oscillates(np.array([0.5, 0.1]))


# -- SageMaker Debugger --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "rule", "code"),
    [
        ({"mean_abs": only(0, 1e-8)}, "VanishingGradient", "GM301"),
        ({"inf_count": only(0, 1.0)}, "ExplodingTensor", "GM201"),
        ({"zero_count": only(0, 32.0)}, "AllZero", "GM303"),
        ({"update_norm": only(0, 100.0)}, "WeightUpdateRatio", "GM401"),
        ({"update_norm": only(0, 1e-9)}, "WeightUpdateRatio, small", "GM402"),
        ({"update_norm": only(0, 1e-6)}, "UnchangedTensor", "GM106"),
    ],
)
def test_sagemaker_judges_each_tensor(change: dict[str, Any], rule: str, code: str) -> None:
    found = rules(sagemaker.judge(trace(**change)))[rule]
    assert code in found.codes
    assert found.where == ("first.weight",)
    assert found.step == (2 if rule == "UnchangedTensor" else 0)


def test_sagemaker_wants_a_lower_loss_every_ten_steps() -> None:
    loss = trace().loss.copy()
    loss[50] = 2.0
    assert rules(sagemaker.judge(trace(loss=loss)))["LossNotDecreasing"].step == 50


def test_sagemaker_sees_dead_units_classes_images_and_padding() -> None:
    dead = {"what": "activation", "step": 30, "module": "relu", "units": 10.0, "inactive_now": 6.0}
    assert sagemaker.judge(trace([dead])) == [Verdict("DeadRelu", ("GM303",), 30, ("relu",))]
    assert sagemaker.judge(trace([{**dead, "inactive_now": 5.0}])) == []
    labels = {"what": "loss", "step": 60, "module": "", "classes": 2.0, "label_share": 0.95, "labels_seen": 600.0}
    assert rules(sagemaker.judge(trace([labels])))["ClassImbalance"].codes == ("GM509",)
    assert sagemaker.judge(trace([{**labels, "labels_seen": 400.0}])) == []
    facts = inputs(InputFact("x", 1, (8, 1, 4, 4), mean=0.3), InputFact("ids", 1, (8, 20), "int64", mode_share=0.8))
    assert set(rules(sagemaker.judge(trace(facts=facts)))) == {"CheckInputImages", "NLPSequenceRatio"}


def test_sagemaker_blames_the_initialisation_only_when_the_loss_does_not_fall() -> None:
    uneven = {"weight_norm": only(0, 100.0)}
    assert "PoorWeightInitialization" not in rules(sagemaker.judge(trace(**uneven)))
    assert "PoorWeightInitialization" in rules(sagemaker.judge(trace(loss=FLAT, **uneven)))


# -- UMLAUT --------------------------------------------------------------------------------------------------------


def test_umlaut_wants_rates_and_inputs_in_fixed_ranges() -> None:
    lr = np.full(STEPS, 0.003)
    lr[40:] = 0.1
    assert umlaut.judge(trace(lr=lr)) == [Verdict("learning rate too high", ("GM401",), 40)]
    assert rules(umlaut.judge(trace(lr=np.zeros(STEPS))))["learning rate too low"].codes == ("GM402", "GM111")
    facts = inputs(InputFact("x", 2, (8, 4), maximum=5.0), InputFact("ids", 2, (8, 4), "int64"))
    assert [each.codes for each in umlaut.judge(trace(facts=facts))] == [("GM506",), ("GM202",)]
    lost = np.arange(STEPS) >= 30
    assert umlaut.judge(trace(lost=lost)) == [Verdict("NaN in loss", ("GM201",), 30)]
    sick = inputs(InputFact("x", 2, (8, 4), nan_count=1))
    assert umlaut.judge(trace(facts=sick)) == []
    assert umlaut.judge(trace(facts=sick, lost=lost))[0].codes == ("GM201", "GM202")


# -- TheDeepChecker ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "rule", "code"),
    [
        ({"mean_abs": only(0, 1e-7)}, "vanishing gradient", "GM301"),
        ({"mean_abs": only(0, 1e7)}, "exploding gradient", "GM302"),
        ({"nan_count": only(0, 1.0)}, "gradient not finite", "GM201"),
        ({"update_norm": only(0, 1e-5)}, "updates too small", "GM402"),
        ({"update_norm": only(0, 0.0)}, "updates too small", "GM402"),
        ({"update_norm": only(0, 2.0)}, "updates too large", "GM401"),
        ({"weight_norm": only(0, 1e10)}, "diverging weights", "GM302"),
    ],
)
def test_deepchecker_judges_each_weight_from_step_ten_on(change: dict[str, Any], rule: str, code: str) -> None:
    found = rules(deepchecker.judge(trace(**change)))[rule]
    assert (found.codes[0], found.step, found.where) == (code, deepchecker.START, ("first.weight",))
    for values in change.values():
        values[1:] = np.nan
    assert rule not in rules(deepchecker.judge(trace(**change)))


def test_deepchecker_wants_four_changes_in_a_row() -> None:
    halved = np.full((STEPS, 3), 0.008)
    for step in range(16, 20):
        halved[step + 1 :] *= 0.45
    assert rules(deepchecker.judge(trace(mean_abs=halved)))["vanishing gradient"].step == 20
    halved[19] = halved[18]
    assert deepchecker.judge(trace(mean_abs=halved)) == []
    growing = 2.0 ** np.arange(STEPS)[:, None] * np.ones(3)
    assert {"exploding gradient"} <= set(rules(deepchecker.judge(trace(mean_abs=growing))))
    assert {"diverging weights"} <= set(rules(deepchecker.judge(trace(weight_norm=growing))))


def test_deepchecker_judges_means_of_the_loss_over_ten_steps() -> None:
    assert rules(deepchecker.judge(trace(loss=FLAT)))["loss stagnates"].step == 49
    explosive = 2.3 * 1.08 ** np.arange(STEPS)
    assert rules(deepchecker.judge(trace(loss=explosive)))["loss diverges"].step == 49
    zigzag = np.repeat([3.0, 1.0] * (STEPS // 20), 10)
    assert rules(deepchecker.judge(trace(loss=zigzag)))["loss fluctuates"].step == 99
    assert rules(deepchecker.judge(trace(lost=np.arange(STEPS) == 7)))["loss not finite"].step == 7


def test_smoothness_is_one_for_a_curve_and_a_third_for_noise() -> None:
    assert smoothness(np.arange(10.0)) == 1.0
    assert smoothness(np.array([0.0, 1.0] * 10)) == 0.0
    assert smoothness(np.random.default_rng(1).normal(size=100_000)) == pytest.approx(1 / 3, abs=0.01)


def test_deepchecker_looks_before_the_training() -> None:
    facts = trace().facts
    facts.losses = [LossFact(0, "cross_entropy", numbers={"classes": 10.0, "baseline": 1.0, "loss": 9.0})]
    facts.inputs = [InputFact("x", 1, (8, 4), maximum=255.0, mean=100.0, std=80.0)]
    found = deepchecker.judge(trace(facts=facts))
    assert [each.codes[0] for each in found] == ["GM506", "GM509", "GM505"]
    facts.inputs = [InputFact("x", 1, (8, 4), minimum=-3.0, maximum=4.0, mean=0.02, std=0.97)]
    assert "inputs are not normalised" not in rules(deepchecker.judge(trace(facts=facts)))
    target = {"target_min": 25.0, "target_max": 346.0, "target_mean": 150.0, "target_std": 77.0}
    facts.losses = [LossFact(0, "mse", numbers=target)]
    assert [each.codes for each in deepchecker.judge(trace(facts=facts))] == [("GM507",)]


def test_deepchecker_judges_activations() -> None:
    rows = []
    for step in (0, 20):
        rows.append({"what": "activation", "step": step, "module": "relu", "units": 10.0, "inactive_units": 6.0})
        rows.append({"what": "activation", "step": step, "module": "tanh", "units": 10.0, "saturated_units": 6.0})
        rows.append({"what": "output", "step": step, "module": "relu", "std": 0.1})
        rows.append({"what": "output", "step": step, "module": "last", "std": 9.0})
    kinds = {"relu": "ReLU", "tanh": "Tanh", "last": "Linear"}
    assert deepchecker.judge(trace(rows, kinds=kinds)) == [
        Verdict("dead activations", ("GM303",), 20, ("relu",)),
        Verdict("saturated activations", ("GM304",), 20, ("tanh",)),
        Verdict("spread of activations", ("GM306",), 20, ("relu",)),
    ]


# -- what they share -----------------------------------------------------------------------------------------------


def test_weight_norms_are_carried_forward() -> None:
    values = np.array([[np.nan, 1.0], [2.0, np.nan], [np.nan, np.nan], [3.0, 4.0]])
    expected = np.array([[np.nan, 1.0], [2.0, 1.0], [2.0, 1.0], [3.0, 4.0]])
    np.testing.assert_array_equal(carried_forward(values), expected)


def test_so_many_in_a_row() -> None:
    flags = np.array([1, 1, 0, 1, 1, 1, 1], dtype=bool)
    assert first_run_of(flags, 3) == 5
    assert first_run_of(flags, 5) is None


def test_skill_is_what_is_left_of_the_loss_of_a_constant_prediction() -> None:
    falling = np.linspace(4.0, 1.0, STEPS)
    steps, skill = trace(loss=falling).skill()
    assert len(steps) == STEPS
    np.testing.assert_allclose(skill, 1 - falling / 2.3)
    scaled = trace(loss=falling)
    scaled.loss = 100 * falling  # what backward saw is not what the loss call returned
    steps, skill = scaled.skill()
    assert steps.tolist() == list(range(0, STEPS, 10))
    np.testing.assert_allclose(skill, 1 - falling[::10] / 2.3)


def test_without_a_loss_call_the_first_loss_stands_for_the_constant_prediction() -> None:
    bare = trace(loss=np.linspace(4.0, 1.0, STEPS))
    bare.rows = []
    steps, skill = bare.skill()
    assert (len(steps), skill[0], skill[-1]) == (STEPS, 0.0, 0.75)


def test_alarms_of_one_step_keep_their_order() -> None:
    one, two, three = Verdict("a", ("GM301",), 5), Verdict("b", ("GM302",), 1), Verdict("c", ("GM303",), 5)
    assert by_time([one, two, three]) == [two, one, three]
    assert one.to_json() == {"rule": "a", "codes": ["GM301"], "made": 5, "where": []}
