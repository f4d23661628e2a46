"""What a transform of the user's own has decided is looked at before it is done, and blamed on it by file and line."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic.clip import BaseTransform, Decision, Scale, State
from gradmedic.clip.base import Halt, Reason
from gradmedic.clip.operations import Limit, MomentLimit, UnitScale
from gradmedic.user_errors import WrongAnswer

HALF = torch.full((3,), 0.5, dtype=torch.float64)
FLAG = torch.tensor(True)


class Mine(BaseTransform):
    """Answers whatever it is told to."""

    def __init__(self, answer):
        self.answer = answer

    def update(self, summary, state):
        return self.answer(state)


LINE = Mine.update.__code__.co_firstlineno


def decided(*operations, **rest):
    return lambda state: (Decision(operations, **rest), state)


WRONG = {
    "nothing": (lambda state: None, "returned None; expected the pair (Decision, State)"),
    "no pair": (lambda state: Decision(), "returned a Decision; expected the pair"),
    "three": (lambda state: (Decision(), state, 1), "returned a tuple of 3; expected the pair"),
    "a number": (lambda state: (0.5, state), "returned 0.5 for its decision; expected a Decision"),
    "a class": (lambda state: (Decision, state), "returned the class Decision for its decision"),
    "no state": (lambda state: (Decision(), None), "returned None for its next state; expected a State"),
    "one operation": (lambda state: (Decision(Scale(HALF)), state), "returned a Scale for operations"),
    "no operation": (decided("clip"), "returned a str among its operations; expected Scale, UnitScale, Limit or"),
    "too few": (
        decided(Scale(HALF[:2])),
        "returned a float64 tensor of shape (2,) for the factor of Scale; expected a ",
    ),
    "too many": (decided(Scale(torch.ones(5))), "returned a float32 tensor of shape (5,) for the factor of Scale"),
    "a column": (decided(Scale(HALF[:, None])), "returned a float64 tensor of shape (3, 1) for the factor of Scale"),
    "no tensor": (decided(Scale(0.5)), "returned 0.5 for the factor of Scale"),
    "complex": (decided(Scale(torch.tensor(1j))), "returned a complex64 tensor of shape () for the factor of Scale"),
    "bool": (decided(Scale(HALF > 0)), "returned a bool tensor of shape (3,) for the factor of Scale"),
    "no mapping": (decided(Limit([1.0])), "returned a list for Limit; expected a mapping of positions of tensors"),
    "beyond": (decided(Limit({3: 1.0})), "returned position 3 for Limit; expected positions of the 3 tensors, from 0 "),
    "by name": (decided(MomentLimit(1.0, {"0.weight": HALF})), "returned position '0.weight' for MomentLimit"),
    "no axis": (decided(UnitScale({0: HALF}, {})), "returned no axis of the units of tensor 0 for UnitScale"),
    "units": (
        decided(UnitScale({0: HALF[:2]}, {0: 0})),
        "decided what cannot be done to these gradients (RuntimeError",
    ),
    "clipped": (decided(clipped=True), "returned True for clipped; expected a 0-d tensor, or None"),
    "threshold": (decided(threshold=HALF), "returned a float64 tensor of shape (3,) for threshold"),
    "a reason": (decided(skips=(Reason(True, "x"),)), "returned True for the flag of a Reason; expected a 0-d bool"),
    "a halt": (decided(halts=(Halt(HALF > 0, "x"),)), "returned a bool tensor of shape (3,) for the flag of a Halt"),
    "no reason": (decided(skips=("x",)), "returned a tuple of 1 for skips; expected a tuple of Reason"),
    "notes": (decided(notes=[1.0]), "returned a list for notes; expected a mapping of names to numbers"),
    "an array": (decided(notes={"x": np.zeros(2)}), "returned a ndarray among its notes; expected 0-d tensors"),
    "a note": (decided(notes={"x": "y"}), "returned a str among its notes; expected 0-d tensors"),
}
WITHIN = {
    "alone": lambda mine: mine,
    "chain": lambda mine: gm.clip.chain(gm.clip.norm(1.0), mine),
    "layers": lambda mine: gm.clip.layers({"0": mine}, default=1.0),
    "warmup": lambda mine: gm.clip.warmup(1.0, mine, 10),
}


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 1, bias=False))


def train(transform, backend="auto"):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with gm.watch(net, optimizer, transform=transform, backend=backend) as monitor:
        for _ in range(3):
            net(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return net, monitor


@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_the_users_error_said_once_and_training_goes_on(name, backend, capfd):
    answer, words = WRONG[name]
    net, monitor = train(Mine(answer), backend)
    said = capfd.readouterr().err
    assert said.count("gradmedic:") == 1
    assert f"Mine in test_clip_answers.py, line {LINE}, {words}" in said
    assert "it is switched off, and gradients go untreated from here on; training goes on" in said
    assert "own error" not in said
    assert monitor.run.steps.num_rows == 3
    assert [event["part"] for event in monitor.run.events if event["kind"] == "error"] == ["transform"]
    untreated, _ = train(None)
    for one, other in zip(net.parameters(), untreated.parameters(), strict=True):
        assert torch.equal(one, other) or "cannot be done" in words


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("name", ["nothing", "too few", "units"])
def test_it_is_named_inside_of_our_own_transforms_too(name, within, capfd):
    answer, words = WRONG[name]
    train(WITHIN[within](Mine(answer)) if within != "warmup" else gm.clip.warmup(Mine(answer), 1.0, 10))
    said = capfd.readouterr().err
    assert f"Mine in test_clip_answers.py, line {LINE}, {words}" in said
    assert said.count("gradmedic:") == 1


NAN, INF = float("nan"), float("inf")
NO_FACTORS = {
    "nan": (lambda: Scale(torch.tensor([1.0, NAN, 1.0])), "returned nan for a factor of Scale; expected finite"),
    "inf": (lambda: Scale(torch.tensor(INF)), "returned inf for a factor of Scale"),
    "negative": (lambda: Scale(-HALF), "returned -0.5 for a factor of Scale"),
    "unit": (lambda: UnitScale({0: torch.tensor([1.0, NAN, 1.0])}, {0: 0}), "returned nan for a factor of UnitScale"),
}
NO_LIMITS = {
    "limit": (lambda: Limit({0: 1.0, 1: -1.0}), "returned -1 for a limit of Limit; expected a number > 0"),
    "nan limit": (lambda: Limit({1: NAN}), "returned nan for a limit of Limit"),
    "theta": (lambda: MomentLimit(-1.0, {1: HALF}), "returned -1 for theta of MomentLimit"),
}


@pytest.mark.parametrize("within", WITHIN)
@pytest.mark.parametrize("name", [*NO_FACTORS, *NO_LIMITS])
def test_a_factor_that_is_none_is_refused_and_never_multiplies_a_gradient(name, within, capfd):
    make, words = {**NO_FACTORS, **NO_LIMITS}[name]
    mine = Mine(decided(make()))
    transform = WITHIN[within](mine) if within != "warmup" else gm.clip.warmup(mine, 1.0, 10)
    net, monitor = train(transform)
    said = capfd.readouterr().err
    assert said.count("gradmedic:") == 1
    assert f"Mine in test_clip_answers.py, line {LINE}, {words}" in said
    [error] = [event for event in monitor.run.events if event["kind"] == "error"]
    assert (error["part"], error["step"]) == ("transform", 0)
    untreated, _ = train(None)
    assert all(torch.equal(one, other) for one, other in zip(net.parameters(), untreated.parameters(), strict=True))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NO_FACTORS)
def test_where_nothing_may_be_read_such_a_factor_counts_as_1_and_that_is_said_when_it_is_known(name, capfd):
    net, monitor = train(Mine(decided(NO_FACTORS[name][0]())), backend="torch")
    untreated, _ = train(None)
    assert all(torch.equal(one, other) for one, other in zip(net.parameters(), untreated.parameters(), strict=True))
    assert (monitor.run.series("grad_norm_post") >= 0).all()
    said = capfd.readouterr().err
    assert said.count("gradmedic:") == 1
    assert "step 0: Mine returned factors that are NaN, infinite or negative; they count as 1" in said
    [error] = [event for event in monitor.run.events if event["kind"] == "error"]
    assert (error["part"], error["step"], error["off"]) == ("transform", 0, False)


def test_sound_factors_leave_no_note_of_any_on_the_path_of_a_device():
    _, monitor = train(Mine(decided(Scale(HALF))), backend="torch")
    assert all(not frame.logged for frame in monitor.run.frames())


@pytest.mark.filterwarnings("error")
def test_a_script_that_clips_by_nan_or_infinity_brings_no_warning_of_ours():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    with gm.watch(net, optimizer, strict=True) as monitor:
        for max_norm in (NAN, INF, 1.0):
            (net(torch.ones(2, 4)) * 0).sum().backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm)
            optimizer.step()
    assert monitor.run.steps.num_rows == 3


@pytest.mark.parametrize(
    "factor", [torch.tensor(0.5), HALF, HALF.float(), HALF.half(), torch.ones(3, dtype=torch.int64)]
)
def test_any_real_type_will_do(factor, capfd):
    _, monitor = train(Mine(decided(Scale(factor), clipped=FLAG, notes={"x": 1.0, "y": FLAG})))
    assert capfd.readouterr().err == ""
    assert monitor.run.series("clipped").all()


class Cap(Limit):
    """An operation of the user's own kind."""


@pytest.mark.parametrize(
    "answer",
    [
        decided(Limit({np.flatnonzero([0, 1])[0]: 1e-3}), notes={"x": np.float32(1), "y": np.array(1.0)}),
        decided(Cap({1: 1e-3})),
        lambda state: [Decision((Limit({1: 1e-3}),)), state],
    ],
)
def test_numbers_of_numpy_and_classes_of_ones_own_will_do(answer, capfd):
    net, _ = train(Mine(answer))
    assert capfd.readouterr().err == ""
    assert (net[0].bias - model()[0].bias).abs().tolist() == pytest.approx([3e-5] * 3, rel=1e-2)


def test_a_clipper_and_a_strict_watch_raise_it():
    net = model()
    net(torch.ones(2, 4)).sum().backward()
    with pytest.raises(WrongAnswer, match=re.escape(f"Mine in test_clip_answers.py, line {LINE}, returned None")):
        gm.Clipper(net, Mine(lambda state: None)).step()
    assert issubclass(WrongAnswer, gm.InputError)


def test_a_first_state_that_is_none_is_refused_at_once():
    class Stateless(Mine):
        def init(self, spec):
            return None

    net = model()
    line = Stateless.init.__code__.co_firstlineno
    with pytest.raises(gm.InputError, match=f"Stateless in .*, line {line}, returned None from init; expected a State"):
        gm.watch(net, torch.optim.SGD(net.parameters()), transform=Stateless(decided()))


def falling(step):
    return 1.0 - step


class Flat:
    """A threshold that knows nothing of its signal."""

    def __init__(self, limit):
        self.limit = limit

    def begin(self, size, device):
        return State()

    def value(self, signal, state, summary):
        return self.limit

    def observe(self, signal, kept, valid, state):
        return state


@pytest.mark.parametrize(
    ("threshold", "words"),
    [
        (
            falling,
            f"falling in test_clip_answers.py, line {falling.__code__.co_firstlineno}, returned 0.0 as the threshold",
        ),
        (Flat(torch.tensor(-1.0)), "returned -1 as a threshold of step 0; expected > 0"),
        (Flat(torch.tensor(float("nan"))), "returned nan as a threshold of step 0; expected > 0"),
        (Flat(None), f"Flat in test_clip_answers.py, line {Flat.value.__code__.co_firstlineno}, returned a NoneType"),
        (Flat(HALF), "returned a tensor of shape (3,); expected a tensor of shape (), as its signal"),
    ],
)
@pytest.mark.parametrize("given", [gm.clip.norm, lambda own: gm.clip.norm(gm.clip.warmup(own, 1.0, 9))])
def test_a_threshold_is_looked_at_as_well(given, threshold, words, capfd):
    train(given(threshold))
    said = capfd.readouterr().err
    assert words in said
    assert "own error" not in said


def test_an_error_of_our_own_transforms_is_not_blamed_on_anyone(monkeypatch, capfd):
    monkeypatch.setattr("gradmedic.probes.treatment.apply_operations", None)
    train(gm.clip.norm(1e-3))
    assert "own error in 'transform'" in capfd.readouterr().err
