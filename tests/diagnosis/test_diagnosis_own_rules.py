"""Rules of the user's own: their words, beside the package's rules, while training and on a record."""

from __future__ import annotations

import json
import threading

import pytest
import torch

import gradmedic as gm
from gradmedic.diagnosis import Draft, Engine
from gradmedic.diagnosis.engine import in_language
from gradmedic.diagnosis.rules import RULES, select
from gradmedic.diagnosis.wording import render
from gradmedic.errors import InputError


class Own:
    code, name, kind, needs = "X1", "own", "invariant", frozenset()

    def __init__(self) -> None:
        self.seen = 0

    def evaluate(self, view):
        self.seen += not view.final
        if view.final:
            params = {"message": f"{self.seen} steps of {{braces}}", "title": "Counted", "remedy": "Count on."}
            yield Draft("warning", 0.5, view.frame.step, params=params)


class Run:
    def __init__(self, processes=1) -> None:
        self.meta, self.events = {}, ()
        self.indices = [*range(4)] * processes

    def frames(self):
        return [gm.Frame(step, "SGD", loss=1.0, lr=0.1, grad_norm=1.0) for step in self.indices]


def test_default_in_a_list_stands_for_all():
    chosen = select(["default", own := Own()])
    assert [type(rule) for rule in chosen[:-1]] == list(RULES)
    assert chosen[-1] is own


def test_words_come_with_the_rule():
    found = gm.diagnose(Run(), rules=[Own()])
    assert [finding.code for finding in found] == ["X1"]
    assert found[0].title == "Counted"
    assert found[0].message == "4 steps of {braces}"
    assert [remedy.text for remedy in found[0].remedies] == ["Count on."]


def test_they_stay_as_they_are_in_another_language_and_after_a_file():
    finding = gm.Finding.from_json(gm.diagnose(Run(), rules=[Own()])[0].to_json(full=True))
    chinese = in_language(finding, "zh")
    assert (chinese.title, chinese.message, chinese.lang) == ("Counted", "4 steps of {braces}", "zh")


def test_rules_given_to_diagnose_are_copied():
    own = Own()
    for _ in range(2):
        assert gm.diagnose(Run(), rules=[own])[0].message == "4 steps of {braces}"
    assert own.seen == 0


def test_only_the_rules_that_are_asked_for_judge_a_record():
    assert gm.diagnose(Run(), rules=["GM201"]) == []
    with pytest.raises(InputError, match="GM999"):
        gm.diagnose(Run(), rules=["GM999"])


def test_a_message_alone_is_enough_and_without_one_the_code_is_unknown():
    words = render("X2", "", {"message": "odd"}, "en")
    assert (words.title, words.message, words.remedies) == ("X2", "odd", ())
    with pytest.raises(InputError, match="X2"):
        render("X2", "", {}, "en")


def test_an_engine_with_both_keeps_both():
    engine = Engine(rules=["default", Own()], strict=True)
    for frame in Run().frames():
        engine.on_frame(frame)
    assert "X1" in [finding.code for finding in engine.finish()]


def trained(steps=5, **settings):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, **settings) as monitor:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 3)).square().mean().backward()
            optimizer.step()
    return monitor


def test_a_monitor_judges_anew_by_the_rules_that_it_was_given(tmp_path):
    """A rule that counts has counted once by then: the record is judged by one that has not."""
    monitor = trained(rules=[Own()], record=tmp_path / "run")
    for findings in (monitor.findings, monitor.diagnose(), monitor.diagnose()):
        assert [(each.code, each.message) for each in findings] == [("X1", "5 steps of {braces}")]
    assert json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["settings"]["rules"] == ["X1 own"]


def test_a_monitor_judges_anew_by_the_limits_that_it_was_given():
    assert [each.code for each in trained(rules=["GM412"], limits=1e-9).diagnose()] == ["GM412"]
    assert trained(rules=["GM201"], limits=1e-9).diagnose() == []


def test_figures_of_a_monitor_show_what_its_rules_found():
    from gradmedic.plot.source import findings_of, views_of

    monitor = trained(rules=[Own()])
    assert [(each.code, each.lang) for each in findings_of(views_of(monitor), "zh")] == [("X1", "zh")]
    assert "X1" not in [each.code for each in findings_of(views_of(monitor.run))]


def test_a_rule_that_cannot_be_copied_is_watched_with_and_named_when_a_copy_is_needed():
    own = Own()
    own.lock = threading.Lock()
    monitor = trained(rules=[own])
    assert [each.code for each in monitor.findings] == ["X1"]
    with pytest.raises(InputError, match=r"read `monitor\.findings`"):
        monitor.diagnose()


def locked():
    own = Own()
    own.lock = threading.Lock()
    return own


def test_fresh_rules_that_cannot_be_copied_judge_a_record():
    """What `monitor.diagnose()` advises where it has no copies."""
    monitor = trained(rules=[locked()])
    assert [each.message for each in gm.diagnose(monitor.run, rules=[locked()])] == ["5 steps of {braces}"]


def test_a_rule_without_a_copy_does_not_judge_two_processes():
    assert [each.message for each in gm.diagnose(Run(2), rules=[Own()])] == ["4 steps of {braces}"]
    with pytest.raises(InputError, match=r"several processes.*cannot be copied.*__deepcopy__"):
        gm.diagnose(Run(2), rules=[locked()])


@pytest.mark.parametrize("name", ["code", "name", "kind", "needs"])
def test_an_object_that_lacks_something_is_told_what_a_rule_must_have(name):
    held = {key: value for key, value in vars(Own).items() if key != name and not key.startswith("__weak")}
    lacking = type("Lacking", (), held)()
    for use in (lambda: trained(rules=["GM201", lacking]), lambda: gm.diagnose(Run(), rules=[lacking])):
        with pytest.raises(InputError, match=f"Lacking has no '{name}'; a rule is .*`code`.*`evaluate`"):
            use()


def test_a_rule_with_needs_that_are_no_columns_and_a_class_are_refused():
    for needs in ("norm", None, frozenset({1})):
        own = Own()
        own.needs = needs
        with pytest.raises(InputError, match="expected a set of column names"):
            select([own])
    with pytest.raises(InputError, match=r"pass Own\(\)"):
        trained(rules=[Own])


def test_a_draft_without_words_is_told_what_to_bring():
    with pytest.raises(InputError, match=r"X2.*params.*message") as raised:
        render("X2", "", {"title": "only"}, "en")
    assert "GM101" not in str(raised.value)


def test_a_rule_that_raises_is_named_with_its_place():
    class Raises(Own):
        def evaluate(self, view):
            raise KeyError("oops")

    engine = Engine(rules=[Raises()])
    engine.on_frame(Run().frames()[0])
    place = f"line {Raises.evaluate.__code__.co_firstlineno + 1}"
    assert engine.errors == [
        f"rule X1 own is switched off: Raises in test_diagnosis_own_rules.py, {place}, raised KeyError: 'oops'"
    ]


def test_a_transform_that_raises_is_named_and_said_to_be_off(capfd):
    from gradmedic.clip import BaseTransform

    class Mine(BaseTransform):
        def update(self, summary, state):
            raise ValueError("mine")

    trained(3, strict=False, transform=gm.clip.chain(gm.clip.norm(1.0), Mine()))
    said = capfd.readouterr().err
    assert said.count("gradmedic:") == 1
    assert f"Mine in test_diagnosis_own_rules.py, line {Mine.update.__code__.co_firstlineno + 1}, raised" in said
    assert "gradients go untreated" in said
    assert "own error" not in said
