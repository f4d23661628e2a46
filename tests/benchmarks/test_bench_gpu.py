"""The benchmark of a card, as far as a CPU can run it: every section, its budget, its words, its files."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).parents[2] / "benchmarks"
TRITON = Path(sys.prefix) / "triton"
needs_triton = pytest.mark.skipif(
    not TRITON.is_dir() and importlib.util.find_spec("triton") is None, reason="Triton is not to be had here"
)


@pytest.fixture(scope="module", autouse=True)
def importable():
    """The files import each other by name, as they do when one of them is run."""
    sys.path.insert(0, str(FOLDER))
    yield
    sys.path.remove(str(FOLDER))


@pytest.fixture(scope="module")
def rehearsal(importable, tmp_path_factory):
    import gpu

    folder, said = tmp_path_factory.mktemp("rehearsal"), io.StringIO()
    with contextlib.redirect_stdout(said):
        assert gpu.main(["--device", "cpu", "--tiny", "--out", str(folder)]) == 0
    return said.getvalue(), (folder / "gpu.md").read_text(), json.loads((folder / "gpu.json").read_text())


def test_a_rehearsal_runs_every_section_and_says_that_it_is_no_measurement(rehearsal):
    shown, markdown, kept = rehearsal
    for text in (shown, markdown):
        assert "No measurement." in text
        assert "MISSED" not in text
        assert "Failed" not in text
    assert kept["measurement"] is False
    titles = [section["title"] for section in kept["sections"]]
    assert titles == [
        "Correctness, against float64", "Kernels", "Waits and memory of a step", "Training steps", "foreach",
    ]  # fmt: skip
    assert {bar["verdict"] for section in kept["sections"] for bar in section["bars"]} == {"not judged"}


def test_every_way_that_the_issue_names_has_a_row(rehearsal):
    by_title = {section["title"]: section for section in rehearsal[2]["sections"]}
    steps = {row[1] for row in by_title["Training steps"]["rows"]}
    assert len(steps) == 6
    assert len({row[0] for row in by_title["Training steps"]["rows"]}) == 2
    assert len(by_title["Training steps"]["bars"]) == 4
    assert len({row[0] for row in by_title["Kernels"]["rows"]}) == 3
    assert {row[0] for row in by_title["Correctness, against float64"]["rows"]} >= {"float32", "bfloat16", "float16"}
    assert all(len(row) == len(section["heads"]) for section in by_title.values() for row in section["rows"])
    figures = by_title["Waits and memory of a step"]["figures"]
    assert figures["gm.watch(record)"]["waits"] == figures["unwatched"]["waits"]


@needs_triton
@pytest.mark.timeout(240)
def test_with_triton_the_kernels_themselves_are_rehearsed(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TRITON), environment.get("PYTHONPATH", "")])
    command = [sys.executable, str(FOLDER / "gpu.py"), "correctness", "--device", "cpu", "--tiny", "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=230, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "The kernels did the work." in done.stdout
    assert "WRONG" not in done.stdout


def test_without_a_card_one_sentence_says_so_and_the_exit_code_is_2(monkeypatch, capsys):
    import gpu

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert "--device cpu --tiny" in told.err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nonsense"], "unknown section nonsense"),
        (["--scale", "2"], "--scale"),
        (["--device", "cpu"], "--tiny"),
        (["--tiny"], "--device cpu"),
    ],
)
def test_arguments_that_make_no_sense_are_explained(arguments, word, capsys):
    import gpu

    with pytest.raises(SystemExit) as stopped:
        gpu.main(arguments)
    assert stopped.value.code == 2
    assert word in capsys.readouterr().err


def context(seconds=60.0):
    from gpu_sizes import Context
    from gpu_timing import Budget, Stopwatch

    cpu = torch.device("cpu")
    return Context(cpu, True, 1.0, Budget(seconds), Stopwatch(cpu))


def test_a_budget_ends_when_its_parent_does():
    from gpu_timing import Budget

    now = itertools.count()
    budget = Budget(10, clock=lambda: float(next(now)))
    part = budget.part(100)
    assert part.left <= 10
    assert not part.over
    for _ in range(10):
        next(now)
    assert part.over
    assert budget.over


def test_rounds_end_with_the_budget_and_say_so():
    from gpu_timing import Budget

    counts = {"a": 0, "b": 0}

    def call(name):
        counts[name] += 1

    watch = context().watch
    times = watch.interleaved({name: lambda n=name: call(n) for name in counts}, 50, Budget(-1), warm=1)
    assert times.cut
    assert times.rounds == 3
    assert counts == {"a": 4, "b": 4}
    assert not watch.interleaved({"a": lambda: None}, 5, Budget(60)).cut


def test_ratios_are_medians_of_pairs_with_an_interval():
    from gpu_timing import Timings

    times = Timings({"base": [1.0, 2.0, 4.0], "other": [2.0, 4.0, 4.0]})
    middle, low, high = times.ratio("other", "base")
    assert (middle, low, high) == (2.0, 1.0, 2.0)
    assert times.ratio("base", "base") == (1.0, 1.0, 1.0)


def test_a_section_that_does_not_fit_is_told_and_is_no_failure(monkeypatch):
    import gpu
    import gpu_kernel

    def full(_context):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 GiB\nmore")

    monkeypatch.setattr(gpu_kernel, "section", full)
    section, failed = gpu.attempt("kernel", context())
    assert not failed
    assert "Out of memory" in section.notes[0]
    assert "--scale" in section.notes[0]


def test_a_case_that_does_not_fit_leaves_the_others(monkeypatch):
    import gpu_kernel

    original, seen = gpu_kernel.calls_of, []

    def first_is_too_large(*arguments):
        seen.append(arguments)
        if len(seen) == 1:
            raise torch.OutOfMemoryError("no")
        return original(*arguments)

    monkeypatch.setattr(gpu_kernel, "calls_of", first_is_too_large)
    section = gpu_kernel.section(context())
    assert "out of memory" in section.notes[1]
    assert len({row[0] for row in section.rows}) == 2


def test_a_section_that_fails_is_told_and_the_exit_code_is_1(monkeypatch, capsys, tmp_path):
    import gpu
    import gpu_foreach

    def broken(_context):
        raise ValueError("no such thing")

    monkeypatch.setattr(gpu_foreach, "section", broken)
    assert gpu.main(["foreach", "--device", "cpu", "--tiny", "--out", str(tmp_path)]) == 1
    assert "Failed: ValueError: no such thing" in capsys.readouterr().out
    assert json.loads((tmp_path / "gpu.json").read_text())["sections"][0]["notes"]


def test_what_is_wrong_is_found(monkeypatch):
    import gpu_correctness

    real = gpu_correctness.on_device.measure

    def off_by_a_little(tensors, histogram):
        table = real(tensors, histogram)
        table.moments[0] *= 1.001
        return table

    monkeypatch.setattr(gpu_correctness.on_device, "measure", off_by_a_little)
    section = gpu_correctness.section(context())
    assert section.wrong
    assert section.bars[0].verdict == "MISSED"


def test_bars_are_met_missed_or_not_measured():
    from gpu_report import Bar, Section

    bars = [Bar("a", 0.9, 0.8, at_least=True), Bar("b", 1.1, 1.0), Bar("c", None, 1.0), Bar("d", float("nan"), 1.0)]
    assert [bar.verdict for bar in bars] == ["met", "MISSED", "not measured", "not measured"]
    text = Section("t", bars=bars).markdown()
    assert "| b | <= 1 | 1.1 | MISSED |" in text
    assert "| a | >= 0.8 | 0.9 | met |" in text


def test_files_hold_strict_json_whatever_was_measured(tmp_path):
    from gpu_report import Section, write

    write(
        tmp_path,
        {"device": "a <card>"},
        [Section("t", figures={"x": float("nan"), 3: [float("inf")]})],
        rehearsal=False,
    )
    kept = json.loads((tmp_path / "gpu.json").read_text(), parse_constant=pytest.fail)
    assert kept["sections"][0]["figures"] == {"x": "nan", "3": ["inf"]}
    assert kept["measurement"] is True


class FakeEvent:
    """An event of a device whose clock goes one millisecond further with each record."""

    now = 0.0

    def __init__(self, enable_timing=False):
        assert enable_timing

    def record(self):
        FakeEvent.now += 1.0
        self.at = FakeEvent.now

    def elapsed_time(self, end):
        return end.at - self.at


@pytest.fixture
def fake_card(monkeypatch):
    """What the benchmark asks of CUDA, answered by nobody; returns the calls, and a context that is on it."""
    from gpu_sizes import Context
    from gpu_timing import Budget, Stopwatch

    calls = []
    memory = iter([100, 100 * 2**20, 103 * 2**20])
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: calls.append(("sleep", cycles)), raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append(("synchronize",)))
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda mode: calls.append(("mode", mode)))
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: next(memory))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(memory))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: next(memory))
    card = torch.device("cuda", 0)
    return calls, Context(card, False, 1.0, Budget(60), Stopwatch(card))


def test_on_a_card_times_are_those_between_events_and_the_host_is_ahead(fake_card):
    calls, card = fake_card
    times = card.watch.interleaved({"a": lambda: None, "b": lambda: None}, 4, card.budget)
    assert times.device == {"a": [1.0] * 4, "b": [1.0] * 4}
    assert sum(call[0] == "sleep" for call in calls) == 8
    assert calls[-1] == ("synchronize",)


def test_on_a_card_waits_are_what_torch_warns_of(fake_card):
    import warnings

    import gpu_counts

    calls, card = fake_card
    with gpu_counts.waits_of(card) as seen:
        warnings.warn("Synchronization debug mode does not yet detect all synchronizing operations", stacklevel=1)
        for _ in range(2):
            warnings.warn("called a synchronizing CUDA operation (Triggered internally)", stacklevel=1)
    assert len(seen) == 2
    assert calls == [("mode", "warn"), ("mode", "default")]


def test_on_a_card_memory_is_the_peak_above_what_there_was(fake_card):
    import gpu_counts

    with gpu_counts.peak_of(fake_card[1]) as peak:
        pass
    assert peak == [3.0]


def test_on_a_card_a_step_that_waits_does_not_pass(fake_card):
    import gpu_counts

    class Work:
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(self):
            return self.model(torch.ones(1, 2)).sum()

    def waits():
        raise RuntimeError("called a synchronizing CUDA operation")

    calls, card = fake_card
    assert gpu_counts._passes(card, Work(), None) == 1.0
    assert gpu_counts._passes(card, Work(), waits) == 0.0
    assert calls == [("mode", "error"), ("mode", "default")] * 2
