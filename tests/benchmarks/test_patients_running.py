"""Running patients: forks that leak nothing, hang or crash alone, and a whole benchmark in small."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.patients.forks import fork
from benchmarks.patients.options import chosen, main
from benchmarks.patients.patient import Patient

from gradmedic.errors import InputError

ROOT = Path(__file__).parents[2]
COMMON = """
import argparse, json, torch

def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--metric")
    return parser.parse_args()
"""
TRAIN = """
import json, os, signal, sys, time
import torch
from common import options

asked = options()
if asked.fault == "F03":
    sys.exit("this one does not even begin")
torch.manual_seed(asked.seed)
x = torch.randn(256, 8)
y = x @ torch.randn(8, 1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=2.0 if asked.fault == "F01" else 0.05)
for step in range(30):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
if asked.fault == "F02":
    time.sleep(1.5)  # the record is on file within a second
    os.kill(os.getpid(), signal.SIGKILL)
final = loss.item()
metric = final if final < 1e30 else None
json.dump({"metric": metric, "higher_is_better": False}, open(asked.metric, "w"))
"""
CATALOGUE = """
[[patient]]
id = "F01"
script = "line.py"
accepted = ["GM401", "GM302"]
split = "development"

[[patient]]
id = "F02"
script = "line.py"
accepted = ["GM101"]
split = "development"

[[patient]]
id = "F03"
script = "line.py"
accepted = ["GM101"]
split = "held-out"

[[patient]]
id = "H01"
script = "line.py"
accepted = []
split = "held-out"
"""


def wait(child: object) -> None:
    while not child.poll():
        time.sleep(0.01)


def test_a_fork_ends_with_its_code_in_its_folder_and_its_output_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()

    def body() -> int:
        print("hello from", os.getcwd())
        Path("here").touch()
        return 7

    child = fork(body, tmp_path / "home", tmp_path / "out.txt", 20)
    wait(child)
    assert (child.code, child.timed_out) == (7, False)
    assert (tmp_path / "home" / "here").exists()
    assert (tmp_path / "out.txt").read_text() == f"hello from {tmp_path / 'home'}\n"
    assert not Path("here").exists()


def test_a_fork_that_raises_says_so_and_one_that_exits_keeps_its_code(tmp_path: Path) -> None:
    def raises() -> int:
        raise ValueError("no good")

    def exits() -> int:
        raise SystemExit(3)

    codes = []
    for body in (raises, exits):
        child = fork(body, tmp_path, tmp_path / "out.txt", 20)
        wait(child)
        codes.append(child.code)
    assert codes == [1, 3]
    assert "ValueError: no good" in (tmp_path / "out.txt").read_text()


def test_a_fork_that_hangs_is_killed_with_all_that_it_has_started(tmp_path: Path) -> None:
    def body() -> int:
        other = subprocess.Popen(["sleep", "300"])
        (tmp_path / "pid").write_text(str(other.pid))
        time.sleep(300)
        return 0

    child = fork(body, tmp_path, tmp_path / "out.txt", 1.0)
    wait(child)
    assert child.timed_out
    assert child.code == -9
    assert 0.9 < child.seconds < 10
    other = int((tmp_path / "pid").read_text())
    for _ in range(200):
        state = Path(f"/proc/{other}/stat")
        if not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.01)
    pytest.fail("a process of the killed run still lives")


def test_patients_are_chosen_by_id_and_split() -> None:
    patients = [Patient("F01", "a.py", ("GM301",), "development"), Patient("H01", "b.py", (), "held-out")]
    assert chosen(patients, None, None) == patients
    assert [each.id for each in chosen(patients, "H01, F01", "held-out")] == ["H01"]
    with pytest.raises(InputError, match="no patient F9"):
        chosen(patients, "F9", None)
    with pytest.raises(InputError, match="leave --split out"):
        chosen(patients, "F01", "held-out")


def benchmark(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.patients", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, check=False)


def run_unwatched(scripts: Path, *words: str) -> None:
    """Run the script here, with one thread, as its watched forks have one; leave the process as it was."""
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(scripts)
        patch.setattr(sys, "argv", ["line.py", *words])
        torch.set_num_threads(1)
        try:
            runpy.run_path(str(scripts / "line.py"), run_name="__main__")
        finally:
            torch.set_num_threads(threads)
            sys.modules.pop("common", None)


@pytest.mark.slow
def test_a_benchmark_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, text in (("common.py", COMMON), ("line.py", TRAIN)):
        (tmp_path / "scripts").mkdir(exist_ok=True)
        (tmp_path / "scripts" / name).write_text(text)
    (tmp_path / "catalogue").mkdir()
    (tmp_path / "catalogue" / "all.toml").write_text(CATALOGUE)
    out = tmp_path / "out.jsonl"
    place = ("--patients", str(tmp_path))
    run = (*place, "--seeds", "1", "--out", str(out), "--keep-runs", str(tmp_path / "kept"))
    first = benchmark(*run)
    assert first.returncode == 0, first.stderr
    lines = {line["id"]: line for line in map(json.loads, out.read_text().splitlines())}
    assert set(lines) == {"twin:line.py", "F01", "F02", "F03", "H01"}
    assert {name: line["status"] for name, line in lines.items()} == {
        "twin:line.py": "ended", "F01": "ended", "F02": "code -9", "F03": "code 1", "H01": "ended",
    }  # fmt: skip
    assert lines["H01"]["metric"] == lines["twin:line.py"]["metric"] < 1.0
    run_unwatched(tmp_path / "scripts", "--seed", "0", "--metric", str(tmp_path / "plain.json"))
    assert json.loads((tmp_path / "plain.json").read_text())["metric"] == lines["H01"]["metric"]
    assert lines["F01"]["metric"] is None or lines["F01"]["metric"] > 1.0
    assert lines["H01"]["steps"] == 30
    assert 28 <= lines["F02"]["steps"] <= 30  # killed, and judged all the same
    assert lines["F02"]["problem"] == ""
    assert "does not even begin" in lines["F03"]["output"]
    assert lines["F03"]["problem"] == "not judged"
    assert set(lines["H01"]["peers"]) >= {"AutoTrainer", "UMLAUT"}
    assert sorted(folder.name for folder in (tmp_path / "kept").iterdir()) == [
        "F01-0",
        "F02-0",
        "H01-0",
        "twin-line.py-0",
    ]

    size = out.stat().st_size
    # What runs no patient forks nothing, and needs no process of its own.
    assert main(run) == 0
    assert "0 runs, 5 were on file" in capsys.readouterr().out
    assert out.stat().st_size == size

    assert main(("table", str(out), *place, "--markdown", str(tmp_path / "table.md"))) == 0
    assert "Missed: not named first" in capsys.readouterr().out
    assert "## Tools" in (tmp_path / "table.md").read_text()
    assert main((*run, "--only", "F77")) == 2
