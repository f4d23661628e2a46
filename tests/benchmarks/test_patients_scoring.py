"""Scores and tables of the patients benchmark, from lines made by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.patients.grid import Grid, render, share, to_markdown
from benchmarks.patients.patient import Patient
from benchmarks.patients.plan import twin_of
from benchmarks.patients.report import build, cases_of
from benchmarks.patients.results import append, keys, load
from benchmarks.patients.scoring import Said, admitted, lies_in, said_in, score, summed

RATE = Patient("F06", "a.py", ("GM401", "GM302"), "development", "rate 3", ("GM404",), onset=10)
DEAD = Patient("F08", "a.py", ("GM303",), "development", "dead", layers=("conv2*",))
LOSS = Patient("F15", "b.py", ("GM501",), "held-out", "double softmax", contract=True)
CONTROL = Patient("H01", "c.py", (), "held-out")


def finding(code: str, severity: str = "error", made: int = 12, where: tuple[str, ...] = (), *beneath: str) -> Any:
    folded = [{"code": each, "severity": "error", "step": 1} for each in beneath]
    return {"code": code, "severity": severity, "made": made, "where": list(where), "folded": folded}


def line(name: str, *findings: Any, seed: int = 0, metric: float | None = 0.9, **changes: Any) -> dict[str, Any]:
    healthy = name.startswith(("H", "twin:"))
    split = {"F15": "held-out", "H01": "held-out", "twin:b.py": "held-out"}.get(name, "development")
    made = {
        "id": name, "seed": seed, "script": "a.py", "split": split, "healthy": healthy, "status": "ended",
        "problem": "", "metric": metric, "higher_is_better": True, "seconds": 1.0, "steps": 100, "overhead": 0.1,
        "findings": list(findings), "peers": {"Peer": []},
    }  # fmt: skip
    return made | changes


def test_only_findings_from_warning_on_are_alarms_in_their_order() -> None:
    said = said_in(line("F06", finding("GM403", "info"), finding("GM404", "warning"), finding("GM401", "critical")))
    assert [each.text for each in said] == ["GM404", "GM401"]


def test_a_peers_rule_stands_for_all_its_codes() -> None:
    verdict = {"rule": "loss does not fall", "codes": ["GM402", "GM401"], "made": 40, "where": []}
    (said,) = said_in(line("F06", peers={"Peer": [verdict]}), "Peer")
    assert said.names(["GM401"])
    assert not said.names(["GM301"])
    assert said.text == "loss does not fall"
    assert said_in(line("F06"), "Other") == []


def test_a_run_is_scored_by_place_precision_and_latency() -> None:
    said = said_in(
        line("F06", finding("GM404"), finding("GM501"), finding("GM302", made=25), finding("GM401", made=31))
    )
    result = score(RATE, said)
    assert (result.top1, result.top3) == (False, True)
    assert (result.right, result.alarms) == (3, 4)
    assert result.latency == 15
    assert result.layer is None


def test_a_fourth_place_is_not_among_three_and_silence_is_no_hit() -> None:
    said = [Said(("GM501",), 1)] * 3 + [Said(("GM401",), 1)]
    assert not score(RATE, said).top3
    silent = score(RATE, [])
    assert (silent.top1, silent.top3, silent.alarms, silent.latency) == (False, False, 0, None)


def test_a_finding_before_the_onset_has_a_latency_below_zero() -> None:
    assert score(RATE, [Said(("GM401",), 4)]).latency == -6


@pytest.mark.parametrize(
    ("made", "invariant", "in_time"),
    [(10, True, True), (13, True, True), (14, True, False), (30, False, True), (31, False, False), (9, False, False)],
)
def test_an_invariant_has_three_steps_and_a_symptom_twenty(made: int, invariant: bool, in_time: bool) -> None:
    patient = replace(RATE, invariant=invariant)
    assert score(patient, [Said(("GM401",), made)]).in_time is in_time
    assert score(patient, []).in_time is None


def test_the_layer_is_hit_by_any_place_of_an_accepted_finding() -> None:
    assert score(DEAD, [Said(("GM303",), 0, ("conv1", "conv2.weight"))]).layer is True
    assert score(DEAD, [Said(("GM303",), 0, ("conv1",))]).layer is False
    assert score(DEAD, [Said(("GM301",), 0, ("conv2",))]).layer is None


@pytest.mark.parametrize(
    ("place", "pattern", "hit"),
    [
        ("conv2", "conv2", True),
        ("conv2.weight", "conv2", True),
        ("conv2", "conv2.weight", True),
        ("conv2.bias", "conv2.weight", True),
        ("conv2.0.weight", "conv2", True),
        ("conv2", "conv*", True),
        ("conv21", "conv2", False),
        ("conv", "conv2", False),
        ("encoder", "encoder.layers.3", False),
        ("encoder.layers.3.linear1.weight", "encoder.layers.*", True),
        ("", "conv2", False),
        ("ConvNet_2.conv2.weight", "conv2", True),  # of one of several networks
        ("block.conv2.weight", "conv2", False),
    ],
)
def test_where_a_place_lies(place: str, pattern: str, hit: bool) -> None:
    assert lies_in(place, [pattern]) is hit


def test_sums_are_shares_of_runs_and_of_alarms() -> None:
    total = summed([score(RATE, said) for said in ([Said(("GM401",), 20)], [Said(("GM501",), 3)], [])])
    assert (total.runs, total.top1, total.top3, total.precision) == (3, 1 / 3, 1 / 3, 0.5)
    assert (total.layer, total.latency) == (None, 10)
    nothing = summed([])
    assert (nothing.runs, nothing.top1, nothing.precision, nothing.latency) == (0, None, None, None)


def runs(name: str, metrics: list[float | None], **changes: Any) -> list[dict[str, Any]]:
    return [line(name, seed=seed, metric=metric, **changes) for seed, metric in enumerate(metrics)]


def test_a_fault_is_admitted_when_its_metric_is_worse_than_the_twins() -> None:
    twins = runs(twin_of("a.py"), [0.9, 0.91, 0.92, 0.93, 0.94])
    assert admitted(RATE, twins + runs("F06", [0.1, 0.2, None, None, 0.5])) is True
    assert admitted(RATE, twins + runs("F06", [0.9, 0.95, 0.91, 0.93, 0.92])) is False
    assert admitted(RATE, twins + runs("F06", [0.1, 0.2])) is None
    assert admitted(LOSS, []) is True


def test_a_loss_is_worse_when_it_is_higher() -> None:
    twins = runs(twin_of("a.py"), [0.1, 0.2, 0.15], higher_is_better=False)
    assert admitted(RATE, twins + runs("F06", [3.0, 2.0, None], higher_is_better=False)) is True
    assert admitted(RATE, twins + runs("F06", [0.01, 0.02, 0.03], higher_is_better=False)) is False


def test_a_fault_without_harm_does_not_count_unless_all_are_asked_for() -> None:
    lines = [*runs(twin_of("a.py"), [0.9, 0.9, 0.9]), *runs("F06", [0.9, 0.9, 0.9]), *runs("F08", [0.1, 0.1, 0.1])]
    assert [patient.id for patient, _ in cases_of([RATE, DEAD], lines).faults] == ["F08"]
    assert [patient.id for patient, _ in cases_of([RATE, DEAD], lines, count_all=True).faults] == ["F06", "F08"]


def example() -> list[dict[str, Any]]:
    return [
        line(twin_of("a.py")),
        line(twin_of("b.py"), finding("GM404", "warning", 7, ("fc",))),
        line("H01"),
        line("H01", seed=1, problem="not judged", status="code 1", output="boom"),
        line("F06", finding("GM401")),
        line("F08", finding("GM301", "error", 9, (), "GM303")),
        line("F15", problem="not judged", status="timeout"),
    ]


def cell(grid: Grid, row: tuple[str, ...], column: str) -> str:
    (found,) = (each for each in grid.rows if each[: len(row)] == row)
    return found[list(grid.header).index(column)]


def test_the_tables_hold_totals_misses_and_alarms() -> None:
    grids = {grid.title: grid for grid in build([RATE, DEAD, LOSS, CONTROL], example())}
    tools = grids["Tools"]
    assert cell(tools, ("development", "gradmedic"), "top-1") == "50 %"
    assert cell(tools, ("held-out", "gradmedic"), "top-1") == "0 %"
    assert cell(tools, ("all", "gradmedic"), "top-1") == "33.3 %"
    assert cell(tools, ("all", "gradmedic"), "with alarm") == "1 / 3"
    assert cell(tools, ("all", "gradmedic"), "alarms / 1k steps") == "3.33"
    assert cell(tools, ("all", "Peer"), "with alarm") == "0 / 3"
    assert cell(grids["By code, development"], ("total",), "runs") == "2"
    assert cell(grids["By code, held-out"], ("GM501",), "admitted") == "1 / 1"
    missed = grids["Missed: not named first"]
    assert cell(missed, ("F08",), "said instead") == "GM301"
    assert cell(missed, ("F08",), "right one") == "under GM301"
    assert cell(missed, ("F15",), "said instead") == "nothing"
    assert "Named before the fault began to act" not in grids
    early = build([replace(RATE, onset=90)], example())
    assert next(each.rows for each in early if each.title.startswith("Named before"))[0][2:] == ("1 / 1", "90", "-78")
    assert grids["Alarms on healthy runs"].rows == [("twin:b.py", "held-out", "GM404", "0", "7", "fc")]
    failed = grids["Runs that were not judged, or hung"]
    assert [row[:3] for row in failed.rows] == [("H01", "1", "code 1"), ("F15", "0", "timeout")]


def test_results_of_patients_that_are_not_asked_for_are_left_out() -> None:
    grids = {grid.title: grid for grid in build([LOSS], example())}
    assert cell(grids["Tools"], ("all", "gradmedic"), "healthy runs") == "1"
    assert "By code, development" not in grids


def test_tables_are_printed_and_written() -> None:
    grids = build([RATE, DEAD, LOSS, CONTROL], example())
    console = Console(width=160, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    render(grids, console)
    assert "SageMaker" not in console.export_text(clear=False)
    assert "Missed: not named first" in console.export_text()
    text = to_markdown(grids)
    assert "| F08 | dead | GM303 | 1 / 1 | GM301 | under GM301 |" in text
    assert all(row.count("|") >= 3 for row in text.splitlines() if row.startswith("|"))
    assert (share(1.0), share(0.0234), share(None)) == ("100 %", "2.3 %", "–")
    with pytest.raises(ValueError, match="expected 1 cells"):
        Grid("x", ("one",)).add("1", "2")


def test_results_are_read_back_the_latest_of_each_and_torn_lines_are_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "results.jsonl"
    assert load(file) == []
    append(file, line("F06", metric=0.1))
    append(file, line("F06", metric=0.2, seed=1))
    with file.open("a") as torn:
        torn.write('{"id": "F06", "se')
    append(file, line("F06", metric=0.3))
    lines = load(file)
    assert keys(lines) == {("F06", 0), ("F06", 1)}
    assert {each["seed"]: each["metric"] for each in lines} == {0: 0.3, 1: 0.2}
    with pytest.raises(ValueError, match="JSON"):
        append(file, line("F06", metric=float("nan")))
