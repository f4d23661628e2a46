"""Runs that end early: interrupted, failed, killed; limits that match nothing; long runs within their budget."""

from __future__ import annotations

import os
import signal
import time

import pytest

import gradmedic
from gradmedic.cli.limit_names import unmatched_limits

TRAIN = """
import os, signal, sys, time, torch
from torch import nn
torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def steps(count):
    for step in range(count):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        yield step
"""
ENDINGS = {
    "interrupted": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(5)", None),
    "exception: ValueError": ("raise ValueError('a bad batch')", 1),
    "exit code 3": ("sys.exit(3)", 3),
}


def script(folder, rest):
    path = folder / "train.py"
    path.write_text(TRAIN + rest)
    return str(path)


@pytest.mark.parametrize("reason", ENDINGS)
def test_the_record_says_how_the_script_ended(gm_fork, tmp_path, reason):
    """R71: python's own exit code, and the reason in the record, with every step."""
    last, code = ENDINGS[reason]
    done = gm_fork("run", "--quiet", "--record", "run", script(tmp_path, f"for _ in steps(5): pass\n{last}\n"))
    assert code is None or done.returncode == code
    run = gradmedic.open_run(tmp_path / "run")
    assert [event["reason"] for event in run.events if event["kind"] == "end"] == [reason]
    assert [frame.step for frame in run.frames()] == list(range(5))


def test_a_limit_that_matches_nothing_is_said_once(gm_fork, tmp_path):
    """R78: with near names, and no change of the exit code; one that matches is passed over."""
    path = script(tmp_path, "for _ in steps(5): pass\n")
    done = gm_fork("run", "--no-record", "--lang", "en", "--limit", "wieght=5", "--limit", "bi*=9999", path)
    text = done.stderr.decode()
    assert done.returncode == 0
    assert text.count("matched no parameter and no module") == 1
    assert "'wieght'" in text
    assert "near names: weight" in text


class Told:
    """A run of which only the names are asked."""

    events = ({"kind": "facts", "facts": {"parameters": {"encoder.0.weight": {}, "head.bias": {}}}}, {"kind": "end"})


@pytest.mark.parametrize("pattern", ["", "encoder", "encoder.0", "encoder.0.weight", "*", "head.*"])
def test_modules_and_parameters_are_names(pattern):
    """R78: every module above a parameter may be limited, and the whole model, whose pattern is empty."""
    assert unmatched_limits({pattern: 1.0}, Told, "en") == []


def test_unmatched_patterns_in_chinese_and_without_names():
    """R78: a sentence for each; nothing is claimed where no names are known."""
    limits = {"encodr": 1.0, "head": 1.0, "decoder.*": 1.0}
    said = unmatched_limits(limits, Told, "zh")
    assert ["没有匹配" in sentence for sentence in said] == [True, True]
    assert "encoder" in said[0]

    class Empty:
        events = ()

    assert unmatched_limits(limits, Empty, "en") == []


@pytest.mark.parametrize("seconds", [0.3, 1.2])
def test_a_killed_run_has_lost_no_more_than_its_last_second(start_gm, tmp_path, seconds):
    """R70: kill -9 of the whole command; the folder opens and holds all but 64 steps, or one second."""
    path = script(tmp_path, "for step in steps(10**6): print(step, time.time(), flush=True)\n")
    process = start_gm("run", "--quiet", "--record", "run", path)
    lines = [process.stdout.readline()]
    time.sleep(seconds)
    os.kill(process.pid, signal.SIGKILL)
    lines += process.stdout.readlines()
    assert process.wait() == -signal.SIGKILL
    made = [float(line.split()[1]) for line in lines if line.endswith(b"\n")]
    run = gradmedic.open_run(tmp_path / "run")
    kept = [frame.step for frame in run.frames()]
    assert kept == list(range(len(kept)))
    # The step after the last one kept is the oldest that was lost; the writer's own time on a busy machine is allowed.
    assert len(made) - len(kept) <= 64 or made[-1] - made[len(kept)] <= 1.5


def test_a_long_run_stays_within_its_budget_and_its_memory(tmp_path, gm_fork):
    """R70, R54: neither the folder nor the process grows with the number of steps."""
    rest = """
def resident(): return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
for step in steps(1500):
    if step in (500, 1499): print(resident(), flush=True)
"""
    done = gm_fork("run", "--quiet", "--budget", "256KB", "--record", "run", script(tmp_path, rest))
    early, late = (int(word) for word in done.stdout.split())
    assert late - early < 16 * 2**20
    assert sum(path.stat().st_size for path in (tmp_path / "run").iterdir()) <= 256 * 1024
    run = gradmedic.open_run(tmp_path / "run")
    kept = [frame.step for frame in run.frames()]
    assert kept[:50] == list(range(50))
    assert kept[-1] >= 1000
