"""Ignite: an engine with the handler, beside the same loop by hand."""

from __future__ import annotations

import pytest
import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Loss
from plain_loops import assert_same, cross_entropy, ending_of, make_loader, make_net, own_errors, plain_loop
from torch import nn
from trainer_docs import run_example

from gradmedic.integrations.ignite import GradMedicHandler
from gradmedic.record import open_run


def make_trainer(model=None, **options):
    model = make_net() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, optimizer, create_supervised_trainer(model, optimizer, nn.CrossEntropyLoss(), **options)


def expected(epochs, accumulate=1):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = [batch for _ in range(epochs) for batch in make_loader()]
    return plain_loop(model, optimizer, batches, cross_entropy, accumulate=accumulate)


def test_same_numbers_as_a_plain_loop(tmp_path):
    model, optimizer, trainer = make_trainer()
    GradMedicHandler(tmp_path / "run", strict=True).attach(trainer, model, optimizer)
    trainer.run(make_loader(), max_epochs=2)
    run = open_run(tmp_path / "run")
    assert_same(run, expected(2))
    assert ending_of(run) == "finished"
    assert not own_errors(run)


def test_accumulation():
    model, optimizer, trainer = make_trainer(gradient_accumulation_steps=3)
    handler = GradMedicHandler(strict=True).attach(trainer, model, optimizer)
    trainer.run(make_loader(), max_epochs=2)
    assert_same(handler.monitor.run, expected(2, accumulate=3))
    assert handler.monitor.run.steps["micro_batches"].to_pylist() == [3] * 4


def test_the_model_is_found_when_none_is_given():
    _, _, trainer = make_trainer()
    handler = GradMedicHandler(strict=True).attach(trainer)
    trainer.run(make_loader(), max_epochs=2)
    assert_same(handler.monitor.run, expected(2))


def test_metrics_of_the_evaluator():
    model, optimizer, trainer = make_trainer()
    evaluator = create_supervised_evaluator(model, {"loss": Loss(nn.CrossEntropyLoss())})
    handler = GradMedicHandler(strict=True).attach(trainer, model, optimizer, evaluator)
    losses = []

    @trainer.on(Events.EPOCH_COMPLETED)
    def evaluate():
        losses.append(evaluator.run(make_loader()).metrics["loss"])

    trainer.run(make_loader(), max_epochs=2)
    logged = [dict(row) for row in handler.monitor.run.steps["logged"].to_pylist()]
    nothing = [{}] * 5
    assert logged == [*nothing, {"logged_loss": losses[0]}, *nothing, {"logged_loss": losses[1]}]
    assert_same(handler.monitor.run, expected(2))  # that loss has not replaced the one of the step


def failing(engine, batch):
    if engine.state.iteration == 4:
        raise ArithmeticError("sick")


@pytest.mark.parametrize("theirs", [False, True])
def test_an_exception_is_raised_or_kept_as_without_us(tmp_path, theirs):
    model, optimizer, trainer = make_trainer()
    train = trainer._process_function
    engine = Engine(lambda engine, batch: (failing(engine, batch), train(engine, batch))[1])
    GradMedicHandler(tmp_path / "run", strict=True).attach(engine, model, optimizer)
    heard = []
    if theirs:  # a handler of the script decides: this one swallows it
        engine.add_event_handler(Events.EXCEPTION_RAISED, lambda _, error: heard.append(error))
        engine.run(make_loader())
        assert len(heard) >= 1
    else:
        with pytest.raises(ArithmeticError, match="sick"):
            engine.run(make_loader())
    run = open_run(tmp_path / "run")
    assert run.steps.num_rows == 3
    assert ending_of(run) == "exception: ArithmeticError"


def test_run_twice_and_attached_twice(tmp_path):
    model, optimizer, trainer = make_trainer()
    for _ in range(2):
        GradMedicHandler(tmp_path / "run", strict=True).attach(trainer, model, optimizer)
    trainer.run(make_loader(), max_epochs=1)
    trainer.run(make_loader(), max_epochs=1)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run", "run-2"]
    for folder in ("run", "run-2"):
        assert open_run(tmp_path / folder).steps.num_rows == 6
        assert ending_of(open_run(tmp_path / folder)) == "finished"


def test_a_finding_terminates_the_engine(tmp_path):
    model, optimizer, trainer = make_trainer()
    GradMedicHandler(tmp_path / "run", stop_on="warning", limits=1e-6, strict=True).attach(trainer, model, optimizer)
    trainer.run(make_loader(), max_epochs=2)
    run = open_run(tmp_path / "run")
    assert run.steps.num_rows == 1
    assert ending_of(run) == "finished"


def test_run_again_with_overwrite(tmp_path):
    for _ in range(2):
        model, optimizer, trainer = make_trainer()
        GradMedicHandler(tmp_path / "run", overwrite=True, strict=True).attach(trainer, model, optimizer)
        trainer.run(make_loader(), max_epochs=1)
    assert [each.name for each in tmp_path.glob("run*")] == ["run"]
    assert open_run(tmp_path / "run").steps.num_rows == 6


def test_the_example_of_the_docs(tmp_path, monkeypatch):
    run_example("Ignite", tmp_path, monkeypatch)
    assert open_run(tmp_path / "runs" / "ignite").steps.num_rows == 20
