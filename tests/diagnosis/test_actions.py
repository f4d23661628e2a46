"""Actions: one vocabulary, the same in both languages, that gradmedic itself can carry out where it says so."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.cli.transform_spec import parse_transform
from gradmedic.diagnosis import actions, wording
from gradmedic.diagnosis.finding import Finding, Remedy
from gradmedic.errors import InputError
from gradmedic.init import schemes

CODES = wording.codes()


def remedies(code, lang):
    return wording.messages(lang)[code].get("remedies", [])


def measured(code):
    """A value for every placeholder that the code's remedies and messages name; ints where the action wants them."""
    table = wording.messages("en")[code]
    texts = [table["message"], *table.get("variants", {}).values(), *(entry["text"] for entry in remedies(code, "en"))]
    for entry in remedies(code, "en"):
        texts += [value for value in entry.get("action", {}).values() if isinstance(value, str)]
    params = {name: 0.25 for text in texts for name in wording.placeholders(text)}
    return params | {"where": ("a.weight", "b"), "step": 7, "winner": "D", "pattern": "enc*", "op": "log", "harm": "h"}


@pytest.mark.parametrize("code", CODES)
def test_every_remedy_has_an_action_and_both_languages_the_same(code):
    english, chinese = ([entry.get("action") for entry in remedies(code, lang)] for lang in wording.LANGUAGES)
    assert english == chinese
    assert None not in english


@pytest.mark.parametrize("code", CODES)
def test_every_action_is_of_the_vocabulary_once_filled_in(code):
    params = measured(code)
    for entry in remedies(code, "en"):
        action = actions.resolve(entry["action"], params, {name: str(value) for name, value in params.items()})
        assert action is not None, entry
        actions.check_action(action)
        assert json.loads(json.dumps(action, allow_nan=False)) == action


@pytest.mark.parametrize("code", CODES)
def test_every_clip_and_guard_is_one_that_the_command_line_takes(code):
    params = measured(code) | {"where": ("a.weight",)}
    for variant in ["", *wording.messages("en")[code].get("variants", {})]:
        for remedy in wording.render(code, variant, params, "en").remedies:
            call = actions.expression(remedy.action)
            if remedy.action["kind"] in ("clip", "guard"):
                assert hasattr(parse_transform(call), "update")
            options = actions.run_options(remedy.action)
            if options[:1] == ("--clip",):
                assert hasattr(parse_transform(options[1]), "update")


def test_schemes_are_those_of_the_initialisation():
    assert schemes.SCHEMES.keys() - {"keep"} | {"auto"} == actions.SCHEMES
    assert actions.expression({"kind": "init", "scheme": "auto"}) == "gm.init.suggest(model).apply_()"
    assert actions.expression({"kind": "init", "scheme": "he"}) == ""


def test_hints_are_used_or_at_least_explained():
    assert all(meaning.strip() for meaning in actions.HINTS.values())
    assert all(hint == hint.lower() and " " not in hint for hint in actions.HINTS)


def test_nan_is_answered_with_the_guard():
    remedy = wording.render("GM201", "forward", measured("GM201"), "en").remedies[-1]
    assert "--guard" in remedy.text
    assert "gm.guard.default()" in remedy.text
    assert actions.run_options(remedy.action) == ("--guard",)
    assert actions.expression(remedy.action) == "gm.guard.default()"


@pytest.mark.parametrize(
    ("template", "params", "expected"),
    [
        ({"kind": "lr", "factor": "1/{times}"}, {"times": 3}, {"kind": "lr", "factor": 0.333}),
        ({"kind": "lr", "factor": "{times}"}, {"times": np.float32(10)}, {"kind": "lr", "factor": 10.0}),
        ({"kind": "lr", "factor": 0.3, "value": "{lower}"}, {"lower": None}, {"kind": "lr", "factor": 0.3}),
        ({"kind": "lr", "factor": 0.3, "value": "{lower}"}, {}, {"kind": "lr", "factor": 0.3}),
        ({"kind": "lr", "factor": "1/{times}"}, {}, None),
        ({"kind": "lr", "factor": "1/{times}"}, {"times": 0}, None),
        ({"kind": "lr", "factor": "{times}"}, {"times": math.inf}, None),
        ({"kind": "clip", "spec": "norm({limit})"}, {"limit": 2.5}, {"kind": "clip", "spec": "norm(2.5)"}),
        ({"kind": "clip", "spec": "norm({limit})"}, {"limit": None}, None),
        (
            {"kind": "init", "scheme": "he", "target": "{where}"},
            {"where": ("a", "b")},
            {"kind": "init", "scheme": "he", "target": ["a", "b"]},
        ),
        ({"kind": "init", "scheme": "he", "target": "{where}"}, {"where": ()}, {"kind": "init", "scheme": "he"}),
        (None, {}, None),
    ],
)
def test_placeholders(template, params, expected):
    assert actions.resolve(template, params) == expected


@settings(deadline=None)
@given(st.floats(1e-30, 1e30))
def test_a_reciprocal_is_right_to_three_digits(times):
    action = actions.resolve({"kind": "lr", "factor": "1/{times}"}, {"times": times})
    assert action["factor"] * times == pytest.approx(1, rel=5e-3)


@pytest.mark.parametrize(
    "action",
    [
        {},
        {"kind": "prayer"},
        {"kind": "clip"},
        {"kind": "clip", "spec": 1.0},
        {"kind": "clip", "spec": "zclip()", "hint": "data"},
        {"kind": "lr", "factor": True},
        {"kind": "code", "hint": "prayer"},
        {"kind": "precision", "mode": "int1"},
        {"kind": "init", "scheme": "prayer"},
        {"kind": "stop", "step": 1.5},
        {"kind": "requires_grad", "value": 0},
        {"kind": "init", "scheme": "he", "target": "a.weight"},
    ],
)
def test_what_is_no_action_is_refused(action):
    with pytest.raises(InputError, match="action"):
        actions.check_action(action)


@pytest.mark.parametrize(
    ("action", "options"),
    [
        ({"kind": "clip", "spec": "zclip()"}, ("--clip", "zclip()")),
        ({"kind": "guard"}, ("--guard",)),
        ({"kind": "guard", "spec": "skip_nonfinite(5)"}, ("--clip", "guard.skip_nonfinite(5)")),
        ({"kind": "stop", "step": 9}, ("--steps", "10")),
        ({"kind": "stop"}, ()),
        ({"kind": "lr", "factor": 0.3}, ()),
        (None, ()),
    ],
)
def test_options_of_the_command_line(action, options):
    assert actions.run_options(action) == options


def test_a_remedy_survives_the_record():
    finding = Finding(
        "GM401", "x", "error", 1.0, 3, remedies=(Remedy("slower", {"kind": "lr", "factor": 0.5}), Remedy("look"))
    )
    text = json.dumps(finding.to_json(full=True), allow_nan=False)
    assert Finding.from_json(json.loads(text)).remedies == finding.remedies
    assert hash(finding) == hash(Finding.from_json(json.loads(text)))
    old = {"text": "clip", "action": "gm.clip.norm(1.0)"}  # actions were text once
    assert Remedy.from_json(old) == Remedy("clip")
