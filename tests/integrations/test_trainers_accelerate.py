"""Accelerate: prepared objects with the tracker, beside the same loop by hand."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, register_tracker_class
from plain_loops import assert_same, cross_entropy, ending_of, make_loader, make_net, own_errors, own_names, plain_loop
from trainer_docs import run_example

import gradmedic as gm
from gradmedic.integrations.accelerate import GradMedicTracker
from gradmedic.record import open_run


@pytest.fixture(autouse=True)
def fresh_state():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


def train(accelerator, clip=None, log=True, fails_at=None):
    net = make_net()
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.01), make_loader())
    for step, batch in enumerate(loader):
        if step == fails_at:
            raise ArithmeticError("sick")
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model, batch))
            if clip is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        if log:
            accelerator.log({"loss": 9.0, "accuracy": step / 10, "note": "text"}, step=step)
    return net


def expected(**options):
    model = make_net()
    return plain_loop(model, torch.optim.AdamW(model.parameters(), lr=0.01), make_loader(), cross_entropy, **options)


def test_same_numbers_as_a_plain_loop(tmp_path):
    tracker = GradMedicTracker(tmp_path / "run", strict=True)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("exp", config={"lr": 0.01})
    train(accelerator)
    accelerator.end_training()
    run = open_run(tmp_path / "run")
    assert_same(run, expected())
    assert ending_of(run) == "finished"
    assert not own_errors(run)
    logged = [dict(row) for row in run.steps["logged"].to_pylist()]
    assert logged == [{"logged_loss": 9.0, "accuracy": step / 10} for step in range(6)]
    assert own_names(run) == {f"{at}.{part}" for at in (0, 2) for part in ("weight", "bias")}


def test_clipping_and_accumulation():
    tracker = GradMedicTracker(strict=True)
    accelerator = Accelerator(cpu=True, log_with=[tracker], gradient_accumulation_steps=2)
    accelerator.init_trackers("exp")
    train(accelerator, clip=0.1, log=False)
    run = accelerator.get_tracker("gradmedic", unwrap=True).run
    assert_same(run, expected(clip=0.1, accumulate=2))
    accelerator.end_training()


def test_prepared_objects_are_watched_by_gm_watch():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    net = make_net()
    model, optimizer, loader = accelerator.prepare(net, torch.optim.AdamW(net.parameters(), lr=0.01), make_loader())
    with gm.watch(model, optimizer, strict=True) as monitor:
        for batch in loader:
            with accelerator.autocast():
                loss = cross_entropy(model, batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    assert_same(monitor.run, expected(clip=0.1, autocast=torch.bfloat16), rel=1e-3)


def test_known_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    register_tracker_class(GradMedicTracker)
    try:
        accelerator = Accelerator(cpu=True, log_with="gradmedic")
        accelerator.init_trackers("project", init_kwargs={"gradmedic": {"every": 2, "strict": True}})
        train(accelerator)
        accelerator.end_training()
    finally:
        del LOGGER_TYPE_TO_CLASS["gradmedic"]
    assert_same(open_run(tmp_path / "project"), expected())


def test_weights_are_those_of_an_unwatched_training():
    accelerator = Accelerator(cpu=True, log_with=GradMedicTracker(strict=True))
    accelerator.init_trackers("exp")
    watched = train(accelerator)
    accelerator.end_training()
    alone = train(Accelerator(cpu=True), log=False)
    for one, other in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, other)


def test_an_exception_in_the_middle(tmp_path):
    tracker = GradMedicTracker(tmp_path / "run", strict=True)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("exp")
    with pytest.raises(ArithmeticError), tracker:
        train(accelerator, fails_at=4)
    run = open_run(tmp_path / "run")
    assert run.steps.num_rows == 4
    assert ending_of(run) == "exception: ArithmeticError"


def test_a_finding_asks_for_the_end():
    tracker = GradMedicTracker(stop_on="warning", limits=1e-6, strict=True)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("exp")
    assert not tracker.should_stop()
    train(accelerator)
    assert tracker.should_stop()
    accelerator.end_training()


def test_run_again_with_overwrite(tmp_path):
    for _ in range(2):
        accelerator = Accelerator(cpu=True, log_with=GradMedicTracker(tmp_path / "run", overwrite=True, strict=True))
        accelerator.init_trackers("exp")
        train(accelerator)
        accelerator.end_training()
    assert [each.name for each in tmp_path.glob("run*")] == ["run"]
    assert open_run(tmp_path / "run").steps.num_rows == 6


def test_the_example_of_the_docs(tmp_path, monkeypatch):
    run_example("Accelerate", tmp_path, monkeypatch)
    run = open_run(tmp_path / "runs" / "accelerate")
    assert run.steps.num_rows == 20
    assert dict(run.steps["logged"].to_pylist()[-1]) == {"accuracy": 0.5}
