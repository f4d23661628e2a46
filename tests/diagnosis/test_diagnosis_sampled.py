"""Rules that look at sampled steps alone: the engine does not ask them about others, and they would have no answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from diagnosis_frames import frames, table

from gradmedic.diagnosis import Engine
from gradmedic.diagnosis.draft import Draft
from gradmedic.diagnosis.rules import RULES
from gradmedic.diagnosis.view import View

SAMPLED = [rule for rule in RULES if getattr(rule, "sampled", False)]
ROW = {"what": "output", "module": "head", "kind": "Linear", "leaf": "0", "call": 0}
#: Rows of every kind that a rule asks for, extreme in all that it might look at.
ROWS = tuple(
    {"what": what, "module": "head", "kind": "Linear", "leaf": "cross_entropy", "call": 0, "extra": {"units": 8.0}}
    | {"heads": 8.0, "low_heads": 1.0, "max_logit": 1e4, "dead_share": 1.0, "untouched_share": 1.0, "loss": 2.3}
    for what in ("output", "activation", "attention", "filters", "loss", "input", "embedding", "batch_norm", "weights")
)


def ugly(n: int = 60):
    """Frames of a run that goes as wrong as it can: NaN, spikes, zeros, growth."""
    rng = np.random.default_rng(0)
    losses = [float("nan") if step % 17 == 5 else float(2 + step**1.5 * rng.random()) for step in range(n)]
    norms = [math.inf if step % 13 == 7 else float(10 ** rng.normal()) for step in range(n)]
    made = frames(losses, norms)
    for step, frame in enumerate(made):
        columns = {name: rng.random(6) * 10.0**step for name in ("norm", "update_norm", "weight_norm", "cosine_prev")}
        frame.tensors = table({name: np.minimum(values, 1e30) for name, values in columns.items()})
    return made


@pytest.mark.parametrize("rule", SAMPLED, ids=lambda rule: rule.code)
def test_it_neither_says_nor_remembers_anything_of_a_quiet_frame(rule):
    made, engine = ugly(), Engine(rules=[rule.code])
    made[0].modules = ROWS  # something is remembered already
    engine.on_frame(made[0])
    asked = next(iter(engine._rules))
    before = repr({key: value for key, value in vars(asked).items()})
    rows = repr(getattr(asked, "_rows", None) and asked._rows._series)
    for frame in made[1:]:
        history = engine._histories[frame.optimizer]
        fresh = history.push(frame)
        view = View(frame, history, engine._layouts[frame.optimizer], None, [], engine._histories, fresh, None, False)
        assert list(asked.evaluate(view)) == []
    assert repr({key: value for key, value in vars(asked).items()}) == before
    assert repr(getattr(asked, "_rows", None) and asked._rows._series) == rows


class Counting:
    """A rule that notes of which frames it was asked."""

    code, name, kind, needs = "X001", "counting", "symptom", frozenset[str]()

    def __init__(self) -> None:
        self.asked: list[tuple[int, bool]] = []

    def evaluate(self, view: View) -> Iterator[Draft]:
        self.asked.append((view.frame.step, view.final))
        return iter(())


class CountingSampled(Counting):
    code, sampled = "X002", True


def test_it_is_asked_about_rows_events_and_the_end():
    every, some = Counting(), CountingSampled()
    engine = Engine(rules=[every, some])
    for frame in frames([1.0] * 6):
        if frame.step == 2:
            frame = replace(frame, modules=(ROW,))
        if frame.step == 4:
            engine.on_event({"kind": "error", "step": 4, "part": "loss", "message": "no"})
        engine.on_frame(frame)
    engine.finish()
    assert some.asked == [(2, False), (4, False), (5, True)]
    assert every.asked == [*((step, False) for step in range(6)), (5, True)]


def test_one_that_shares_the_code_of_a_sampled_rule_is_asked_about_all():
    own = Counting()
    own.code = SAMPLED[0].code
    engine = Engine(rules=[SAMPLED[0].code, own])
    for frame in frames([1.0] * 3):
        engine.on_frame(frame)
    assert [step for step, _ in own.asked] == [0, 1, 2]
