"""Keras 3 on torch: a model that is fitted with the callback, beside the same loop with torch's own operations."""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "torch"

import copy
import math

import keras
import pytest
import torch
from plain_loops import Step, assert_same, ending_of, make_data, make_loader, norm_of, own_errors, watched_script
from torch import nn
from trainer_docs import run_example

import gradmedic as gm
from gradmedic import torch_hooks
from gradmedic.integrations import keras_steps
from gradmedic.integrations.keras import GradMedicCallback
from gradmedic.record import open_run
from gradmedic.watching import watch_process

NAMES = [f"sequential/dense{at}/{part}" for at in ("", "_1") for part in ("kernel", "bias")]


def make_model(optimizer=None, **options):
    keras.utils.set_random_seed(0)
    keras.backend.clear_session()
    layers = keras.layers
    model = keras.Sequential([layers.Input((4,)), layers.Dense(8, activation="tanh"), layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1, **options) if optimizer is None else optimizer
    model.compile(optimizer, loss=loss)
    return model


def fit(model, *callbacks, x=None, **options):
    inputs, labels = (each.numpy() for each in make_data())
    settings = {"epochs": 1, "batch_size": 8, "shuffle": False, "verbose": 0, **options}
    return model.fit(inputs if x is None else x, labels, callbacks=list(callbacks), **settings)


def by_hand(clip=lambda parameters: None, accumulate=1, epochs=1):
    """SGD, and the gradients as torch sees them."""
    model = make_model()
    parameters = [variable.value for variable in model.trainable_variables]
    steps, losses = [], []
    for at, (x, y) in enumerate([batch for _ in range(epochs) for batch in make_loader()]):
        loss = nn.functional.cross_entropy(model(x), y)
        (loss / accumulate).backward()
        losses.append(loss.item())
        if (at + 1) % accumulate:
            continue
        before = norm_of(parameters)
        clip(parameters)
        steps.append(Step(sum(losses) / len(losses), before, norm_of(parameters)))
        with torch.no_grad():
            for parameter in parameters:
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
        losses = []
    return steps


def clip_each(parameters):
    for parameter in parameters:
        torch.nn.utils.clip_grad_norm_([parameter], 0.1)


@pytest.mark.parametrize(
    ("options", "reference"),
    [
        ({}, {}),
        ({"global_clipnorm": 0.1}, {"clip": lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.1)}),
        ({"clipnorm": 0.1}, {"clip": clip_each}),
        ({"clipvalue": 0.02}, {"clip": lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.02)}),
        ({"gradient_accumulation_steps": 2}, {"accumulate": 2}),
        ({"loss_scale_factor": 1024.0}, {}),
    ],
    ids=["plain", "global_clipnorm", "clipnorm", "clipvalue", "accumulation", "scaled"],
)
def test_same_numbers_as_a_plain_loop(options, reference):
    callback = GradMedicCallback(strict=True)
    fit(make_model(**options), callback)
    run = callback.monitor.run
    assert_same(run, by_hand(**reference), rel=1e-4)
    assert run.steps["micro_batches"].to_pylist() == [reference.get("accumulate", 1)] * run.steps.num_rows
    assert run.steps["lr"].to_pylist() == pytest.approx([0.1] * run.steps.num_rows)
    assert run.steps["loss_scale"].to_pylist()[0] == options.get("loss_scale_factor")
    assert all(run.steps["clipped"].to_pylist()) == ("clip" in reference)
    assert sorted(set(run.tensors["name"].to_pylist())) == sorted(NAMES)
    assert ending_of(run) == "finished"
    assert not own_errors(run)


@pytest.mark.parametrize("kind", ["Adam", "Adafactor", "Muon"])
def test_every_kind_of_optimizer_is_heard(kind):
    callback = GradMedicCallback(strict=True)
    fit(make_model(getattr(keras.optimizers, kind)(1e-3, clipnorm=0.1)), callback)
    rows = callback.monitor.run.steps.to_pylist()
    assert [row["step"] for row in rows] == list(range(6))
    assert rows[0]["grad_norm"] == pytest.approx(by_hand()[0].pre, rel=1e-4)
    assert rows[0]["grad_norm_post"] <= 0.2 + 1e-5


def test_steps_that_a_dynamic_loss_scale_withholds():
    callback = GradMedicCallback(strict=True)
    x = make_data()[0].numpy()
    x[16:24] = float("inf")
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), initial_scale=1024.0)
    fit(make_model(optimizer), callback, x=x)
    rows = callback.monitor.run.steps.to_pylist()
    assert [row["skipped"] for row in rows] == [False, False, True, False, False, False]
    assert [row["loss_scale"] for row in rows] == [1024.0] * 3 + [512.0] * 3
    first = by_hand()[:2]
    for row, step in zip(rows, first, strict=False):
        assert (row["loss"], row["grad_norm"]) == pytest.approx((step.loss, step.pre), rel=1e-4)
    assert not math.isfinite(rows[2]["grad_norm"])


def weights_of(model):
    return [variable.value.detach().clone() for variable in model.trainable_variables]


@pytest.mark.parametrize("options", [{"global_clipnorm": 0.1}, {"gradient_accumulation_steps": 2}])
def test_weights_are_those_of_an_unwatched_fit(options):
    watched, alone = make_model(**options), make_model(**options)
    fit(watched, GradMedicCallback(strict=True), epochs=2)
    fit(alone, epochs=2)
    assert all(map(torch.equal, weights_of(watched), weights_of(alone)))


def test_a_transform_clips_before_the_optimizer():
    callback = GradMedicCallback(transform=gm.clip.norm(0.1), strict=True)
    model, clipped = make_model(), make_model(global_clipnorm=0.1)
    fit(model, callback)
    fit(clipped)
    assert max(callback.monitor.run.steps["grad_norm_post"].to_pylist()) == pytest.approx(0.1, rel=1e-5)
    for one, other in zip(weights_of(model), weights_of(clipped), strict=True):
        torch.testing.assert_close(one, other)


def test_a_guard_skips_a_step_whole():
    x = make_data()[0].numpy()
    x[16:24] = float("nan")
    callback = GradMedicCallback(transform=gm.guard.skip_nonfinite(3), strict=True)
    model = make_model(keras.optimizers.Adam(1e-2))
    fit(model, callback, x=x)
    assert callback.monitor.run.steps["skipped"].to_pylist() == [False, False, True, False, False, False]
    assert all(bool(torch.isfinite(each).all()) for each in weights_of(model))


@pytest.mark.parametrize("sick", ["_calls", "_put", "_log_mean_loss"])
def test_a_fault_of_ours_leaves_the_training_as_it_is(sick, monkeypatch, capsys):
    def fail(*_):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(keras_steps, "_reported", False)
    watched, alone = make_model(global_clipnorm=0.1), make_model(global_clipnorm=0.1)
    fit(alone)
    monkeypatch.setattr(keras_steps, sick, fail)
    fit(watched, GradMedicCallback())
    assert all(map(torch.equal, weights_of(watched), weights_of(alone)))
    assert capsys.readouterr().err.count("not seen in full; training goes on (ZeroDivisionError: ours)") == 1


def test_faults_of_keras_stay_those_of_keras():
    optimizer = keras.optimizers.SGD(0.1)
    model = make_model(optimizer)

    def fail(*_):
        raise ArithmeticError("theirs")

    with GradMedicCallback(strict=True) as callback:
        optimizer._parallel_update_step = fail
        with pytest.raises(ArithmeticError, match="theirs"):
            fit(model, callback)


def test_a_version_of_keras_that_works_in_another_way(monkeypatch, capsys):
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    with monkeypatch.context() as patch:
        patch.delattr(BaseOptimizer, "_clip_gradients")
        with pytest.raises(RuntimeError, match="_clip_gradients"):
            keras_steps.hear()
    assert keras_steps._users == 0
    assert not keras_steps._removers


def test_metrics_of_the_epoch_and_of_its_validation():
    callback = GradMedicCallback(strict=True)
    history = fit(make_model(), callback, epochs=2, validation_split=1 / 3).history
    logged = [dict(row) for row in callback.monitor.run.steps["logged"].to_pylist()]
    assert [bool(row) for row in logged] == [False, False, False, True] * 2
    assert logged[3] == {"logged_loss": history["loss"][0], "val_loss": history["val_loss"][0]}


def test_nothing_of_ours_stays_in_keras_and_copies_carry_arguments(tmp_path):
    from keras.src.optimizers.base_optimizer import BaseOptimizer

    before = {name: value for name, value in vars(BaseOptimizer).items() if callable(value)}
    callback = GradMedicCallback(tmp_path / "run", every=2, strict=True)
    model = make_model()
    fit(model, callback)
    assert before == {name: value for name, value in vars(BaseOptimizer).items() if callable(value)}
    assert keras_steps._users == 0
    assert copy.deepcopy(callback).options == {"every": 2, "strict": True}
    model.save(tmp_path / "model.keras")
    assert keras.models.load_model(tmp_path / "model.keras").count_params() == model.count_params()


def test_fitted_twice_attached_twice_and_an_exception(tmp_path):
    class Failing(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 3:
                raise ArithmeticError("sick")

    callbacks = [GradMedicCallback(tmp_path / "run", strict=True) for _ in range(2)]
    model = make_model()
    fit(model, *callbacks)
    fit(model, *callbacks)
    assert [open_run(tmp_path / name).steps.num_rows for name in ("run", "run-2")] == [6, 6]
    with pytest.raises(ArithmeticError), callbacks[0]:
        fit(model, callbacks[0], Failing())
    assert ending_of(open_run(tmp_path / "run-3")) == "exception: ArithmeticError"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run", "run-2", "run-3"]
    assert not torch_hooks.attached()


def test_a_finding_stops_the_fit():
    callback = GradMedicCallback(stop_on="warning", limits=1e-6, strict=True)
    fit(make_model(), callback, epochs=3)
    assert callback.monitor.run.steps.num_rows == 1


SCRIPT = """
from test_trainers_keras import fit, make_model
{own}
fit(make_model(global_clipnorm=0.1), *own)
"""
OWN = "from gradmedic.integrations.keras import GradMedicCallback; own = [GradMedicCallback('x')]"


@pytest.mark.parametrize("own", ["own = []", OWN], ids=["without a callback", "with one"])
def test_an_unmodified_script_under_gradmedic_run(tmp_path, monkeypatch, own):
    monkeypatch.chdir(tmp_path)
    code, run = watched_script(tmp_path, SCRIPT.format(own=own))
    assert code == 0
    clip = {"clip": lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.1)}
    assert_same(run, by_hand(**clip), rel=1e-4)
    assert not (tmp_path / "x").exists()
    assert run.steps["optimizer"].to_pylist() == ["optimizer"] * 6


def test_run_again_with_overwrite(tmp_path):
    for _ in range(2):
        fit(make_model(), GradMedicCallback(tmp_path / "run", overwrite=True, strict=True))
    assert [each.name for each in tmp_path.glob("run*")] == ["run"]
    assert open_run(tmp_path / "run").steps.num_rows == 6


def test_the_example_of_the_docs(tmp_path, monkeypatch):
    names = run_example("Keras", tmp_path, monkeypatch)
    assert open_run(tmp_path / "runs" / "keras").steps.num_rows == 24
    assert names["frame"].grad_norm_post <= 1.0 + 1e-5


def test_a_step_that_is_compiled_as_a_whole_is_left_alone_and_that_is_said(monkeypatch, capsys, tmp_path):
    """Seen from inside, its clipped gradients pass for unclipped ones. torch's compiler is left out, for its time."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    callback = GradMedicCallback(tmp_path / "run")
    model = make_model(global_clipnorm=0.1)
    model.jit_compile = True
    fit(model, callback, epochs=2)
    assert callback.monitor is None
    assert not (tmp_path / "run").exists()
    said = capsys.readouterr().err
    assert said.count("jit_compile=True compiles the whole training step") == 1
    assert "goes on" in said
    twin = make_model(global_clipnorm=0.1)
    fit(twin, epochs=2)
    assert all(torch.equal(a.value, b.value) for a, b in zip(model.weights, twin.weights, strict=True))
    again = make_model(global_clipnorm=0.1)
    fit(again, second := GradMedicCallback())
    assert second.monitor.latest.clipped


@pytest.mark.parametrize("early", [True, False])
def test_so_it_is_under_gradmedic_run(early, monkeypatch, capsys):
    """Which begins to hear at the first backward call, in the midst of a step whose function was made before."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    stop = keras_steps.hear() if early else None
    scale = keras.optimizers.SGD.scale_loss

    def scale_loss(self, loss):
        nonlocal stop
        stop = stop or keras_steps.hear()
        return scale(self, loss)

    monkeypatch.setattr(keras.optimizers.SGD, "scale_loss", scale_loss)
    try:
        with watch_process(record=None, strict=True) as monitor:
            model = make_model(global_clipnorm=0.1)
            model.jit_compile = True
            fit(model)
        assert not any(frame.clipped for frame in monitor.run.frames())
        assert monitor.diagnose() == []
    finally:
        stop()
    assert capsys.readouterr().err.count("jit_compile=True") == 1
