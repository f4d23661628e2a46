"""Fabric: a loop with the callback, beside the same loop by hand."""

from __future__ import annotations

import pytest
import torch
from lightning.fabric import Fabric
from plain_loops import assert_same, cross_entropy, ending_of, make_loader, make_net, own_errors, own_names, plain_loop
from trainer_docs import run_example

import gradmedic as gm
from gradmedic.integrations.fabric import GradMedicCallback
from gradmedic.integrations.hosts import process_monitor
from gradmedic.integrations.lightning_entry import VARIABLE
from gradmedic.record import open_run

NAMES = {f"{at}.{part}" for at in (0, 2) for part in ("weight", "bias")}


def train(callbacks, clip=None, precision=None, fails_at=None, watch=None):
    fabric = Fabric(accelerator="cpu", callbacks=callbacks, precision=precision)
    net = make_net()
    model, optimizer = fabric.setup(net, torch.optim.AdamW(net.parameters(), lr=0.01))
    monitor = None if watch is None else watch(model, optimizer)
    for at, batch in enumerate(make_loader()):
        if at == fails_at:
            raise ArithmeticError("sick")
        fabric.backward(cross_entropy(model, batch))
        if clip is not None:
            fabric.clip_gradients(model, optimizer, max_norm=clip)
        optimizer.step()
        optimizer.zero_grad()
    return monitor


def expected(**options):
    model = make_net()
    return plain_loop(model, torch.optim.AdamW(model.parameters(), lr=0.01), make_loader(), cross_entropy, **options)


@pytest.mark.parametrize(
    ("options", "loop", "rel"),
    [
        ({}, {}, 2e-5),
        ({"clip": 0.1}, {"clip": 0.1}, 2e-5),
        ({"precision": "bf16-mixed"}, {"autocast": torch.bfloat16}, 1e-2),
    ],
    ids=["plain", "clip", "bf16"],
)
def test_same_numbers_as_a_plain_loop(tmp_path, options, loop, rel):
    with GradMedicCallback(tmp_path / "run", strict=True) as callback:
        train([callback], **options)
        callback.log(loss=3.0, accuracy=0.5)
    run = open_run(tmp_path / "run")
    assert_same(run, expected(**loop), rel=rel)
    assert ending_of(run) == "finished"
    assert own_names(run) == NAMES
    assert dict(run.steps["logged"].to_pylist()[-1]) == {"logged_loss": 3.0, "accuracy": 0.5}
    assert not own_errors(run)


def test_wrapped_models_are_watched_under_their_own_names():
    monitor = train([], watch=lambda model, optimizer: gm.watch(model, optimizer, strict=True))
    monitor.close()
    assert_same(monitor.run, expected())
    assert set(monitor.run.tensors["name"].to_pylist()) == NAMES


def test_an_exception_in_the_middle(tmp_path):
    with pytest.raises(ArithmeticError), GradMedicCallback(tmp_path / "run", strict=True) as callback:
        train([callback], fails_at=4)
    run = open_run(tmp_path / "run")
    assert run.steps.num_rows == 4
    assert ending_of(run) == "exception: ArithmeticError"


def test_switched_on_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "run"))
    train([])
    process_monitor().close()
    assert_same(open_run(tmp_path / "run"), expected())


def test_run_again_with_overwrite(tmp_path):
    for _ in range(2):
        with GradMedicCallback(tmp_path / "run", overwrite=True, strict=True) as callback:
            train([callback])
    assert [each.name for each in tmp_path.glob("run*")] == ["run"]
    assert open_run(tmp_path / "run").steps.num_rows == 6


def test_the_example_of_the_docs(tmp_path, monkeypatch):
    run_example("Fabric", tmp_path, monkeypatch)
    assert open_run(tmp_path / "runs" / "fabric").steps.num_rows == 20
