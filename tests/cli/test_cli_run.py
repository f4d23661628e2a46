"""`gradmedic run` on scripts that train."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from gradmedic.record import open_run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

#: Trains two models, raises inside `backward` and in a thread, and says on stdout what must not change.
TRAINING = """
import atexit, hashlib, os, sys, threading
print("torch" in sys.modules)
os.environ["OMP_NUM_THREADS"] = "1"
import torch
print(torch.__spec__.loader.__dict__.keys(), [type(finder).__name__ for finder in sys.meta_path])
torch.manual_seed(0)
encoder, head = torch.nn.Linear(4, 3), torch.nn.Linear(3, 1)
slow = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)
fast = torch.optim.AdamW(head.parameters(), lr=0.01)
atexit.register(print, "at exit")
def step():
    loss = head(encoder(torch.randn(8, 4)).tanh()).square().mean()
    loss.backward()
    slow.step(); fast.step()
    slow.zero_grad(); fast.zero_grad()
    return loss.item()
try:
    for _ in range(6):
        print(step())
finally:
    weights = b"".join(p.detach().numpy().tobytes() for m in (encoder, head) for p in m.parameters())
    print(hashlib.sha256(weights).hexdigest(), torch.rand(1).item(), flush=True)
def fails(x):
    return head(encoder(x)).backward(torch.ones(3))
thread = threading.Thread(target=fails, args=(torch.ones(1, 4),), name="trainer")
thread.start(); thread.join()
try:
    fails(torch.ones(1, 4))
except RuntimeError as error:
    raise ValueError("after") from error
"""


@pytest.fixture
def training(tmp_path):
    (tmp_path / "train.py").write_text(TRAINING)
    return "train.py"


def without_our_words(stderr: bytes) -> bytes:
    return stderr[: stderr.index(b"gradmedic: ")]


def optimizers_of(folder: Path) -> set[str]:
    return set(open_run(folder).optimizers)


def test_a_training_script_does_what_it_does_under_python(gm, python, training, tmp_path):
    theirs = python(training)
    ours = gm("run", "--record", "rec", training)
    assert ours.stdout == theirs.stdout
    assert ours.returncode == theirs.returncode == 1
    assert without_our_words(ours.stderr) == theirs.stderr
    assert b"Traceback" in theirs.stderr
    said = ours.stderr[len(theirs.stderr) :].decode()
    assert re.search(r"record: rec\b", said)
    run = open_run(tmp_path / "rec")
    assert set(run.optimizers) == {"slow", "fast"}
    assert run.matrix("norm", optimizer="slow")[1] == ["encoder.weight", "encoder.bias"]
    assert len(run.series("loss", optimizer="fast")) == 6


def test_steps_end_the_script_cleanly(gm_fork, training, tmp_path):
    done = gm_fork("run", "--steps", "4", "--record", "rec", training)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert done.stdout.count(b"\n") == 2 + 1 + 1 + 1  # two before training, one whole loop, the digest, "at exit"
    run = open_run(tmp_path / "rec")
    assert sum(len(run.series("grad_norm", optimizer=name)) for name in run.optimizers) == 4


def test_findings_decide_the_exit_code_only_when_asked(gm_fork, tmp_path):
    failing = gm_fork("run", "--record", "rec", "--fail-on", "error", str(EXAMPLES / "nan_row.py"))
    assert failing.returncode == 1
    assert b"GM201" in failing.stderr
    assert b"loss nan" in failing.stdout
    judged = gm_fork("diagnose", "rec", "--format", "json", "--fail-on", "critical")
    assert judged.returncode == 1

    def no_constants(word: str) -> None:
        raise AssertionError(f"not strict JSON: {word}")

    report = json.loads(judged.stdout, parse_constant=no_constants)
    assert "GM201" in [finding["code"] for finding in report["findings"]]
    assert report["steps"] == 57
    again = gm_fork("run", "--record", "rec", "absent_is_never_reached.py")
    assert again.returncode == 2


def test_a_healthy_script_is_healthy_in_both_languages(gm_fork, tmp_path):
    done = gm_fork(
        "run", "--no-record", "--fail-on", "warning", str(EXAMPLES / "healthy_digits.py"), GRADMEDIC_LANG="zh"
    )
    assert done.returncode == 0
    assert "健康" in done.stderr.decode()
    assert list(tmp_path.iterdir()) == []


def test_weights_updated_by_hand_are_watched(gm_fork, tmp_path):
    done = gm_fork("run", "--record", "rec", str(EXAMPLES / "by_hand.py"))
    assert done.returncode == 0
    assert b"updated by hand" in done.stderr
    run = open_run(tmp_path / "rec")
    (name,) = run.optimizers
    steps, names, norms = run.matrix("norm", optimizer=name)
    assert len(steps) == 60
    assert names == ["weight", "bias"]
    assert norms[-1, 0] < norms[0, 0]


def test_processes_that_the_script_starts_are_watched(gm_fork, tmp_path):
    done = gm_fork("run", "--record", "rec", str(EXAMPLES / "subprocess_child.py"))
    assert done.returncode == 0
    assert done.stdout.startswith(b"child: epoch 2")
    assert b"nothing was trained" not in done.stderr
    run = open_run(tmp_path / "rec")
    assert [len(run.series("loss", optimizer=name)) for name in run.optimizers] == [87]


def test_spawned_data_workers_record_nothing(gm_fork, tmp_path):
    done = gm_fork("run", "--record", "rec", str(EXAMPLES / "spawn_workers.py"))
    assert done.returncode == 0
    assert len(list((tmp_path / "rec").glob("steps-*.arrows"))) == 1
    run = open_run(tmp_path / "rec")
    assert [len(run.series("loss", optimizer=name)) for name in run.optimizers] == [29]


def test_forked_processes_that_train_are_watched(gm_fork, tmp_path):
    (tmp_path / "forks.py").write_text(
        """
import multiprocessing, os
import torch
def train(steps):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    early = context.Process(target=train, args=(3,))
    early.start(); early.join()
    train(5)
    late = context.Process(target=train, args=(7,))
    late.start(); late.join()
    print(early.exitcode, late.exitcode, os.getpid() > 0)
"""
    )
    done = gm_fork("run", "--record", "rec", "forks.py")
    assert (done.stdout, done.returncode) == (b"0 0 True\n", 0)
    assert done.stderr.count(b"record: rec") == 1
    assert open_run(tmp_path / "rec").steps.num_rows == 3 + 5 + 7


def test_a_script_that_trains_nothing_keeps_its_exit_code(gm_bare, tmp_path):
    (tmp_path / "idle.py").write_text("import sys; sys.exit(int(sys.argv[1]))\n")
    for code in (0, 5):
        done = gm_bare("run", "--fail-on", "info", "idle.py", str(code))
        assert done.returncode == code
        assert done.stderr == b"gradmedic: nothing was trained: idle.py never imported torch\n"
    assert not (tmp_path / "runs").exists()


def test_an_existing_run_is_refused_before_anything_runs(gm_bare, tmp_path):
    (tmp_path / "rec").mkdir()
    (tmp_path / "rec" / "run.json").write_text("{}")
    (tmp_path / "says.py").write_text("print('ran')\n")
    refused = gm_bare("run", "--record", "rec", "says.py")
    assert (refused.returncode, refused.stdout) == (2, b"")
    assert b"--overwrite" in refused.stderr
    assert gm_bare("run", "--record", "rec", "--overwrite", "--quiet", "says.py").stdout == b"ran\n"


def test_only_rank_zero_speaks(gm_fork, tmp_path):
    (tmp_path / "one.py").write_text(
        "import torch\nw = torch.ones(2, requires_grad=True)\no = torch.optim.SGD([w], 0.1)\n"
        "w.sum().backward(); o.step()\nprint('trained')\n"
    )
    job = {"WORLD_SIZE": "2", "MASTER_PORT": "29511", "TORCHELASTIC_RUN_ID": "job7"}
    second = gm_fork("run", "one.py", RANK="1", LOCAL_RANK="1", **job)
    first = gm_fork("run", "one.py", RANK="0", LOCAL_RANK="0", **job)
    assert (second.returncode, second.stdout, second.stderr) == (0, b"trained\n", b"")
    assert b"runs/one-job7-29511" in first.stderr
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == ["one-job7-29511"]
    assert open_run(tmp_path / "runs" / "one-job7-29511").steps.num_rows == 2


def test_clipping_is_applied(gm_fork, training, tmp_path):
    done = gm_fork("run", "--record", "rec", "--clip", "0.01", "--limit", "0.05", training)
    frames = list(open_run(tmp_path / "rec").frames())
    assert len(frames) == 12
    assert all(frame.grad_norm_post == pytest.approx(0.01, rel=1e-3) for frame in frames)
    assert b"GM412" in done.stderr
