"""`gradmedic run --sink …`: what it feeds, what it refuses before training, and that training goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradmedic.cli import sink_options
from gradmedic.cli.options import RunOptions
from gradmedic.errors import InputError
from gradmedic.sinks.words import WORDS

SCRIPT = """
import multiprocessing, sys
import torch

def train(steps=4):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()

if "fork" in sys.argv:
    processes = [multiprocessing.get_context("fork").Process(target=train) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
else:
    train()
"""


@pytest.fixture
def run(gm_fork, tmp_path):
    """Runs the script with these options and arguments."""
    (tmp_path / "train.py").write_text(SCRIPT)
    return lambda *words: gm_fork("run", *words)


def test_files_are_fed_and_a_bad_sink_stops_nothing(run, tmp_path):
    sinks = ["jsonl:out.jsonl", "csv:train.py/x.csv", "tensorboard:tb", "webhook:http://127.0.0.1:9/hidden"]
    words = [word for sink in sinks for word in ("--sink", sink)]
    done = run("--no-record", *words, "train.py")
    assert done.returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert len(list((tmp_path / "tb").iterdir())) == 1
    assert done.stderr.decode().count("sink Csv gets nothing more: cannot write to train.py/x.csv") == 1
    assert b"hidden" not in done.stderr + done.stdout


def test_of_several_processes_one_feeds(run, tmp_path):
    done = run("--record", "runs/a", "--sink", "jsonl:out.jsonl", "train.py", "fork")
    assert done.returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    recorded = "".join(path.read_text(errors="replace") for path in (tmp_path / "runs/a").iterdir())
    assert "out.jsonl" not in recorded


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        ("prometeus:9105", "--sink expects one of tensorboard:DIR"),
        ("csv", "expects csv:FILE"),
        ("tensorboard:", "expects tensorboard:DIR"),
        ("opentelemetry:x", "takes no target"),
        ("prometheus:http", "expects a port"),
        ("prometheus:99999", "port from 0 to 65535"),
        ("webhook:$GRADMEDIC_NOT_SET", "no variable GRADMEDIC_NOT_SET"),
        ("webhook:hidden", "begins with https://"),
        ("textfile:x.txt", "ends in .prom"),
    ],
)
def test_usage_errors_are_said_before_training(sink, said):
    with pytest.raises(InputError) as caught:
        sink_options.make_sinks([sink])
    assert said in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_usage_error_is_code_2(run, tmp_path):
    done = run("--sink", "webhook:ftp://hidden", "train.py")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"hidden" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_targets(monkeypatch):
    monkeypatch.setenv("HOOK", "https://h.example/hidden")
    words = [
        "prometheus",
        "prometheus:0.0.0.0:9200",
        "prometheus:[::1]:0",
        "jsonl",
        "mlflow:sqlite:///a.db",
        "webhook:$HOOK",
    ]
    shown = [repr(sink) for sink in sink_options.make_sinks([*words, "wandb:p", "wandb", "webhook:${HOOK}"])]
    assert shown[:4] == [
        "Prometheus(port=9105, host='127.0.0.1')",
        "Prometheus(port=9200, host='0.0.0.0')",
        "Prometheus(port=0, host='::1')",
        "JsonLines('-')",
    ]
    assert shown[5:] == [shown[5], "Wandb(project='p')", "Wandb(project=None)", shown[5]]
    assert "hidden" not in "".join(shown)


def test_one_process_takes_the_claim(monkeypatch):
    path = sink_options.new_claim()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not sink_options.claim(path)
    monkeypatch.setenv("RANK", "0")
    assert sink_options.claim(path)
    assert not Path(path).exists()  # nothing is left, however the training ends
    assert not sink_options.claim(path)
    sink_options.release(path)
    sink_options.release(path)
    assert not Path(path).exists()


def test_a_run_in_which_nothing_trains_leaves_nothing():
    path = sink_options.new_claim()
    assert Path(path).is_file()
    sink_options.release(path)
    assert not Path(path).exists()


def test_options_travel():
    options = RunOptions(sinks=["jsonl:-"], sink_claim="x")
    assert RunOptions.from_json(options.to_json()) == options


def test_help_names_every_kind():
    assert all(kind in sink_options.described() for kind in ("wandb[:PROJECT]", "csv:FILE", "opentelemetry"))
    assert set(WORDS) == {"en", "zh"}
