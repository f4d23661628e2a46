import pytest
from payload_runs import frame, run_of

from gradmedic.diagnosis import Evidence, Finding, Remedy
from gradmedic.diagnosis.wording import render
from gradmedic.report.page.verdict import finding_entries, not_judged, recorded_findings
from gradmedic.report.views import Source

PARAMS = {"step": 3, "steps": 9, "where": ("a",), "optimizer": "adam"}


def event(finding):
    return {"kind": "finding", "step": finding.step, "finding": finding.to_json(full=True)}


def finding(code="GM302", severity="warning", step=3, where=("a",), **values):
    return Finding(code, "name", severity, 0.5, step, "adam", where, message="m", title="t", **values)


def test_a_graver_finding_of_the_same_place_takes_the_place_of_the_first():
    events = [event(finding()), event(finding(severity="error")), event(finding(where=("b",), step=9))]
    found = recorded_findings(run_of([], events=events).events)
    assert sorted((each.severity, each.where) for each in found) == [("error", ("a",)), ("warning", ("b",))]


def test_the_same_fault_at_two_places_of_one_step_is_two_findings():
    events = [event(finding()), event(finding(where=("b",)))]
    assert [each.where for each in recorded_findings(run_of([], events=events).events)] == [("a",), ("b",)]
    graver = [*events, event(finding(where=("c",), severity="error"))]
    assert [each.where for each in recorded_findings(run_of([], events=graver).events)] == [("c",)]


def test_damaged_events_are_left_out():
    events = [{"kind": "finding"}, {"kind": "finding", "finding": 3}, {"kind": "finding", "finding": {"code": "GM302"}}]
    assert recorded_findings([*events, event(finding())]) == recorded_findings([event(finding())])


def test_both_languages_and_keys_of_their_own():
    given = [
        finding("GM111", variant="", params=PARAMS),
        finding("GM111", step=3),
        finding("GM111", step=4),
        finding("GM111", step=3, evidence=(Evidence("e", float("nan")),), remedies=(Remedy("r"),)),
    ]
    entries = finding_entries(given)
    assert set(entries) == {"en", "zh"}
    keys = [entry["url_key"] for entry in entries["en"]]
    assert len(set(keys)) == 4
    assert keys == [entry["url_key"] for entry in entries["zh"]]
    assert entries["en"][3]["evidence"][0]["value"] == "NaN"
    words = render("GM111", "", PARAMS, "zh")
    assert entries["zh"][0]["title"] == words.title
    assert entries["zh"][0]["lang"] == "zh"


def test_what_cannot_be_worded_anew_stays_as_it_was():
    (entry,) = finding_entries([finding("GM999")])["zh"]
    assert entry["message"] == "m"


@pytest.mark.parametrize(
    ("frames", "count"),
    [([], 1), ([frame(0)], 4), ([frame(0, ["a"], norm=1.0, scalars={"loss": 1.0})], 2)],
)
def test_what_could_not_be_judged(frames, count):
    found = not_judged(Source(run_of(frames)))
    assert [len(found[lang]) for lang in ("en", "zh")] == [count, count]
