"""Who carries the gradient, how neighbours compare, and what could not be judged, against sums done by hand."""

import json
import math
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradmedic as gm
from gradmedic.diagnosis.coverage import MODULE_RULES, Coverage
from gradmedic.diagnosis.engine import in_language
from gradmedic.diagnosis.finding import Finding
from gradmedic.facts import Facts, ParameterFact
from gradmedic.frame import Frame, TensorTable
from gradmedic.report.layer_flow import FlowSum
from gradmedic.report.run_summary import gradients_json, summarize
from gradmedic.report.text import render_checkup, render_findings


class FakeRun:
    path = None
    meta: ClassVar[dict] = {}

    def __init__(self, frames, events=()):
        self.made, self.events = list(frames), list(events)

    def frames(self):
        return iter(self.made)


def frame(step, norms, numel=None, **values):
    names = tuple(f"layers.{i}.weight" for i in range(len(norms)))
    numel = np.array(numel or [4] * len(norms))
    table = TensorTable(names, {"norm": np.array(norms, dtype=float), "numel": numel})
    return Frame(step, "SGD", loss=1.0, grad_norm=float(np.linalg.norm(norms)), tensors=table, **values)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3), min_size=1, max_size=6))
def test_shares_and_ratios_are_those_of_a_plain_sum(steps):
    numel = [2, 3, 5]
    summed = FlowSum()
    for step, norms in enumerate(steps):
        summed.add(frame(step, norms, numel))
    flow = summed.flow(None)
    expected = [sum(n[i] ** 2 / sum(v * v for v in n) for n in steps) / len(steps) for i in range(3)]
    assert dict(flow.shares) == pytest.approx({f"layers.{i}": expected[i] for i in range(3)})
    assert [share for _, share in flow.shares] == sorted((share for _, share in flow.shares), reverse=True)
    logs = [sum(math.log(n[i] / math.sqrt(numel[i])) for n in steps) / len(steps) for i in range(3)]
    ratios = [math.exp(logs[i] - logs[i + 1]) for i in range(2)]
    assert flow.ratio == pytest.approx(sum(ratios) / 2)
    assert flow.steepest[2] == pytest.approx(max(ratios, key=lambda r: abs(math.log(r))))


def test_skipped_and_nonfinite_steps_tell_nothing_and_norms_of_any_size_do_not_overflow():
    summed = FlowSum()
    summed.add(frame(0, [1.0, 1.0], skipped=True))
    summed.add(frame(1, [1.0, 1.0], nonfinite=3))
    summed.add(frame(2, [0.0, 0.0]))
    assert summed.flow(None).shares == ()
    summed.add(frame(3, [3e200, 4e200]))
    assert dict(summed.flow(None).shares) == pytest.approx({"layers.1": 0.64, "layers.0": 0.36})


def test_layers_follow_the_order_of_execution():
    facts = Facts(
        parameters={
            f"layers.{i}.weight": ParameterFact(f"layers.{i}.weight", f"layers.{i}", "Linear", (2, 2), order=2 - i)
            for i in range(3)
        }
    )
    summed = FlowSum()
    summed.add(frame(0, [1.0, 10.0, 1000.0]))
    assert summed.flow(facts).steepest == ("layers.2", "layers.1", pytest.approx(100.0))


def test_the_checkup_shows_both_and_json_holds_them():
    run = FakeRun([frame(step, [3.0, 4.0]) for step in range(6)])
    text = render_checkup(run, [], width=140)
    assert "carried by     layers.1 64%, layers.0 36%" in text
    assert "gradient rms 0.75 (median)" in text
    assert "5 → 5 → 5 (pre-clip; early, middle, late)" in text
    data = json.loads(render_findings([], "json", run))
    assert data["gradients"] == [gradients_json(summarize(run).series[0])]
    assert data["gradients"][0]["norm_phases"] == [5.0, 5.0, 5.0]


def test_what_is_usual_for_large_models_is_told_of_them_alone():
    def shown(elements: int) -> str:
        weight = ParameterFact("layers.0.weight", "layers.0", "Linear", (elements,), numel=elements)
        facts = {"kind": "facts", "facts": Facts(parameters={"layers.0.weight": weight}).to_json(), "time": -1.0}
        return render_checkup(FakeRun([frame(step, [3.0, 4.0]) for step in range(6)], [facts]), [], width=140)

    usual = "large models often 10–1000, 1–100, 0.1–10"
    assert usual in shown(10_000_000)
    assert usual not in shown(9_999_999)


def test_what_was_not_seen_is_said_not_to_be_judged():
    run = FakeRun([frame(0, [1.0])])
    text = render_checkup(run, [], width=200)
    assert "not judged     activations, attention and predictions, since no module probe was recorded; how the" in text
    assert "未判断" in render_checkup(run, [], lang="zh", width=200)
    judged = json.loads(render_findings([], "json", run))["not_judged"]
    assert judged[0] == {"reason": "no_modules", "codes": list(MODULE_RULES)}
    assert [entry.reason for entry in Coverage().not_judged(None)] == ["no_steps"]


def test_an_ordinary_run_is_judged_in_full(tiny_training):
    monitor = tiny_training()
    assert summarize(monitor.run).not_judged == []
    assert "not judged" not in render_checkup(monitor.run, [])


@pytest.fixture
def tiny_training():
    import torch

    def train():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with gm.watch(model, optimizer, strict=True) as monitor:
            for _ in range(5):
                loss = torch.nn.functional.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            return monitor

    return train


def test_two_heads_side_by_side_are_no_neighbours():
    shapes = {"trunk": (8, 4), "action_head": (3, 8), "value_head": (1, 8)}
    facts = Facts(
        parameters={
            f"{name}.weight": ParameterFact(f"{name}.weight", name, "Linear", shape, order=at)
            for at, (name, shape) in enumerate(shapes.items())
        }
    )
    table = TensorTable(tuple(facts.parameters), {"norm": np.array([1.0, 2.0, 300.0]), "numel": np.array([32, 24, 8])})
    summed = FlowSum()
    summed.add(Frame(0, "SGD", grad_norm=300.0, tensors=table))
    assert summed.flow(facts).steepest[:2] == ("trunk", "action_head")


@pytest.mark.parametrize(("lang", "four", "two"), [("en", "layer 4", "layer 0.2"), ("zh", "层 4", "层 0.2")])
def test_layers_that_are_numbers_are_called_layers(lang, four, two):
    table = TensorTable(("4.weight", "0.2.weight"), {"norm": np.array([4.0, 3.0]), "numel": np.array([4, 4])})
    run = FakeRun([Frame(step, "SGD", loss=1.0, grad_norm=5.0, tensors=table) for step in range(3)])
    where = ("4", "0.2", "net.4")
    found = in_language(Finding("GM303", "dead-units", "warning", 0.9, 3, where=where, params={"where": where}), lang)
    text = render_checkup(run, [found], width=160, lang=lang)
    assert f"{four} 64%" in text
    assert f"{two} 36%" in text
    assert "layer net.4" not in text
    separator = ", " if lang == "en" else "、"
    assert text.count(f"{four}{separator}{two}{separator}net.4") == 2  # of the heading, and of the message
    assert gradients_json(summarize(run).series[0])["shares"] == pytest.approx({"4": 0.64, "0.2": 0.36})
