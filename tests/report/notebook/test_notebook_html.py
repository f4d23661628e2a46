"""What notebooks show: the recorded values, escaped, without scripts."""

import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gradmedic as gm
from gradmedic.diagnosis import Evidence, Finding, Remedy
from gradmedic.diagnosis.findings import Findings
from gradmedic.frame import Frame, TensorTable
from gradmedic.record import MemoryRecorder
from gradmedic.report.notebook.frame_html import worst_first
from gradmedic.report.notebook.sparkline import sparkline

ALLOWED = set(
    [
        "div",
        "b",
        "span",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "code",
        "svg",
        "path",
        "details",
        "summary",
        "ul",
        "li",
    ]
)
EVIL = "<script>alert(1)</script>\"' onload=x &amp; \n\x1b[31m \u202e 层 " + "y" * 300


class Page(HTMLParser):
    """Collects the tags, attributes and text of a page, and checks that every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def page(shown):
    found = Page(shown._repr_html_())
    assert set(found.tags) <= ALLOWED
    assert not any(name.startswith("on") or name in ("href", "src") for name, _ in found.attributes)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", found.text)
    return found


def frame(step=3, **values):
    names = ("good", "nan", "none", "zero", "huge")
    columns = {
        "status": np.array([0, 0, 1, 0, 0]),
        "numel": np.full(5, 4),
        "nan_count": np.array([0, 3, 0, 0, 0]),
        "norm": np.array([1.0, 0.5, 0.0, 0.0, 1e6]),
        "weight_norm": np.array([2.0, np.nan, 2.0, 2.0, 2.0]),
    }
    return Frame(step, "adam", loss=0.25, grad_norm=math.nan, tensors=TensorTable(names, columns), **values)


def finding(**values):
    given = {"code": "GM301", "name": "vanishing-gradient", "severity": "error", "confidence": 0.9, "step": 7}
    return Finding(**{**given, **values})


def run_of(frames, events=()):
    recorder = MemoryRecorder(meta={})
    for each in frames:
        recorder.put(each, keep=True)
    for event in events:
        recorder.event(event)
    recorder.close()
    return recorder.run


def test_a_frame_shows_its_scalars_and_the_worst_tensors_first():
    shown = page(frame(skipped=True, skip_reason="non-finite", logged={"acc": 0.5}))
    assert "step 3" in shown.text
    assert "0.25" in shown.text
    assert "NaN" in shown.text
    assert "skipped: non-finite" in shown.text
    assert "acc" in shown.text
    places = [shown.text.index(name) for name in ("3 not finite", "none", "zero", "huge", "good")]
    assert places == sorted(places)


def test_the_order_of_the_worst():
    assert [frame().tensors.names[at] for at in worst_first(frame().tensors)] == ["nan", "none", "zero", "huge", "good"]
    assert worst_first(TensorTable()) == []


def test_a_bare_frame_stands():
    assert "step 0" in page(Frame(0, "")).text


def test_a_run_shows_both_curves_and_what_was_found_while_it_ran():
    event = {
        "kind": "finding",
        "step": 2,
        "time": 9.0,
        "finding": finding(title="Vanishing gradient").to_json(full=True),
    }
    shown = page(run_of([Frame(step, "adam", loss=2.0 - step, grad_norm=1.0) for step in range(3)], [event]))
    assert shown.tags.count("svg") == 2
    assert "3 steps" in shown.text
    assert "2 → 0" in shown.text
    assert "GM301" in shown.text
    assert "Vanishing gradient" in shown.text


def test_an_empty_and_a_broken_run_stand(tmp_path):
    assert "no step" in page(run_of([])).text
    shown = page(run_of([Frame(0, "adam", loss=1.0), Frame(1, "adam", loss=math.nan, grad_norm=math.inf)]))
    assert "1 → not finite" in shown.text
    (tmp_path / "steps-0-1dx1-00000.arrows").write_bytes(b"garbage")
    torn = gm.open_run(tmp_path)
    assert torn.problems
    assert torn.problems[0][:20] in page(torn).text


def test_findings_show_everything():
    one = finding(
        title="Vanishing gradient",
        where=tuple(f"layer.{at}" for at in range(9)),
        message="The gradient vanishes.",
        evidence=(Evidence("ratio", 0.001, 0.1, "x"), Evidence("kind", "Linear"), Evidence("n", math.inf)),
        remedies=(Remedy("Use ReLU."),),
        folded=(finding(code="GM303", step=8),),
    )
    shown = page(Findings([one]))
    for text in ("1 finding", "GM301", "error", "step 7", "layer.3", "and 5 more", "The gradient vanishes.", "0.001"):
        assert text in shown.text
    for text in ("Use ReLU.", "GM303", "Linear", "inf"):
        assert text in shown.text
    assert "layer.4" not in shown.text
    assert "Nothing found" in page(Findings()).text
    assert "第 7 步" in page(Findings([finding(lang="zh")])).text


def test_hostile_texts_stay_texts():
    hurt = finding(
        name=EVIL,
        title=EVIL,
        where=(EVIL,),
        message=EVIL,
        optimizer=EVIL,
        evidence=(Evidence(EVIL, EVIL, 1.0, EVIL),),
        remedies=(Remedy(EVIL),),
    )
    page(Findings([hurt]))
    table = TensorTable((EVIL,), {"status": np.zeros(1, int), "norm": np.ones(1)})
    evil = Frame(0, EVIL, loss=1.0, skipped=True, skip_reason=EVIL, logged={EVIL: 1.0}, tensors=table)
    page(evil)
    page(run_of([evil], [{"kind": "finding", "time": 1.0, "finding": {"code": EVIL, "severity": EVIL, "step": EVIL}}]))


@settings(deadline=None)
@given(st.lists(st.floats() | st.sampled_from([math.nan, 1.7e308, -1.7e308]), max_size=400))
def test_a_sparkline_stays_in_its_picture(values):
    drawn = sparkline(np.array(values, dtype=float), "loss")
    known = [value for value in values if not math.isnan(value)]
    assert bool(drawn) == bool(known)
    for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", drawn):
        assert 0 <= float(x) <= 240  # NaN is not
        assert 0 <= float(y) <= 44
    assert ("l4 4m0" in drawn) == any(math.isinf(value) for value in known)


def test_a_sparkline_shows_a_spike_among_thousands():
    values = np.ones(10_000)
    values[5_003] = 2.0
    assert min(float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", sparkline(values, "norm"))) < 10


@pytest.mark.parametrize("values", [[1.0], [1.0, 1.0], [0.0, 0.0, 5.0], [-1.0, 1.0]])
def test_short_and_flat_curves_have_something_to_see(values):
    assert re.search(r'd="M', sparkline(np.array(values), "x"))


def test_more_logged_values_than_are_shown_are_counted():
    frame = Frame(3, "SGD", loss=0.5, logged={f"metric{at}": float(at) for at in range(20)})
    shown = page(frame).text
    assert "metric11" in shown
    assert "metric12" not in shown
    assert "and 8 more logged values" in shown


def test_a_monitor_shows_the_run_as_far_as_it_has_come():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer) as monitor:
        assert "no step was recorded" in page(monitor).text
        for _ in range(3):
            model(torch.ones(4, 2)).square().sum().backward()
            optimizer.step()
        shown = page(monitor).text
        assert "watching" in shown
        assert "3 steps" in shown
        assert not monitor.closed
    shown = page(monitor).text
    assert "closed" in shown
    assert "3 steps" in shown
    assert monitor.closed
