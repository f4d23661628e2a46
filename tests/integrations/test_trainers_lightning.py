"""Lightning: a trainer with the callback, beside the same loop by hand."""

from __future__ import annotations

import copy

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning_models import QUIET, Adversaries, Classifier, fit
from plain_loops import (
    Step,
    assert_same,
    cross_entropy,
    ending_of,
    make_loader,
    norm_of,
    own_errors,
    plain_loop,
    watched_script,
)
from trainer_docs import run_example

import gradmedic as gm
from gradmedic.integrations import lightning_entry
from gradmedic.integrations.lightning import GradMedicCallback
from gradmedic.record import open_run


def scaled():
    """Lightning itself takes 16-mixed for bf16-mixed on a CPU; its plugin works there all the same."""
    return {"plugins": [MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))]}


def expected(**options):
    model = Classifier()
    return plain_loop(model, torch.optim.AdamW(model.parameters(), lr=0.01), make_loader(), cross_entropy, **options)


@pytest.mark.parametrize(
    ("options", "loop", "rel"),
    [
        ({}, {}, 2e-5),
        ({"gradient_clip_val": 0.1}, {"clip": 0.1}, 2e-5),
        ({"gradient_clip_val": 0.1, "accumulate_grad_batches": 2}, {"clip": 0.1, "accumulate": 2}, 2e-5),
        ({"precision": "bf16-mixed", "gradient_clip_val": 0.1}, {"autocast": torch.bfloat16, "clip": 0.1}, 1e-3),
        ({**scaled(), "gradient_clip_val": 0.1}, {"autocast": torch.float16, "clip": 0.1}, 1e-2),
        ({"precision": "64-true"}, {}, 1e-4),
    ],
    ids=["plain", "clip", "accumulate", "bf16", "fp16", "fp64"],
)
def test_same_numbers_as_a_plain_loop(options, loop, rel):
    callback = GradMedicCallback(strict=True)
    fit(Classifier(), [callback], make_loader(), **options)
    run = callback.monitor.run
    assert_same(run, expected(**loop), rel=rel)
    assert run.steps["micro_batches"].to_pylist() == [loop.get("accumulate", 1)] * run.steps.num_rows
    assert ending_of(run) == "finished"
    assert not own_errors(run)
    assert run.steps["loss_scale"].to_pylist()[0] == (1024.0 if "plugins" in options else None)


def test_a_step_that_the_scaler_withholds():
    callback = GradMedicCallback(strict=True)
    fit(Classifier(poisoned_at=2), [callback], make_loader(), **scaled())
    assert callback.monitor.run.steps["skipped"].to_pylist() == [False, False, True, False, False, False]


def test_manual_optimization_and_several_optimizers():
    callback = GradMedicCallback(strict=True)
    fit(Adversaries(), [callback], make_loader())
    model = Adversaries()
    optimizers = model.configure_optimizers()
    steps = {"generator": [], "critic": []}
    for batch in make_loader():
        parts = zip(steps, optimizers, model.losses(batch), strict=True)
        for name, optimizer, loss in parts:
            optimizer.zero_grad()
            loss.backward()
            part = list(getattr(model, name).parameters())
            before = norm_of(part)
            if name == "critic":
                torch.nn.utils.clip_grad_norm_(part, 0.1)
            steps[name].append(Step(loss.item(), before, norm_of(part)))
            optimizer.step()
    for name, wanted in steps.items():
        assert_same(callback.monitor.run, wanted, optimizer=name)


def test_weights_are_those_of_an_unwatched_fit():
    watched, alone = Classifier(), Classifier()
    fit(watched, [GradMedicCallback(strict=True)], make_loader(), gradient_clip_val=0.1)
    fit(alone, [], make_loader(), gradient_clip_val=0.1)
    for one, other in zip(watched.parameters(), alone.parameters(), strict=True):
        assert torch.equal(one, other)


def test_validation_and_test_loops_make_no_steps_and_leave_their_metrics():
    callback = GradMedicCallback(strict=True)
    model = Classifier()
    trainer = fit(model, [callback], make_loader(), make_loader(), max_epochs=2, num_sanity_val_steps=2)
    trainer.validate(model, make_loader(), verbose=False)
    run = callback.monitor.run
    assert run.steps.num_rows == 12
    logged = [dict(row) for row in run.steps["logged"].to_pylist()]
    assert [bool(row) for row in logged] == [False, False, False, False, False, True] * 2
    assert logged[-1]["val_loss"] == pytest.approx(float(trainer.callback_metrics["val_loss"]))


def test_resumed_from_a_checkpoint_it_counts_on(tmp_path):
    saving = {"enable_checkpointing": True, "default_root_dir": str(tmp_path), "gradient_clip_val": 0.1}
    first = GradMedicCallback(tmp_path / "run", transform=gm.clip.zclip(), strict=True)
    checkpoints = ModelCheckpoint(tmp_path / "kept", save_last=True)
    fit(Classifier(), [first, checkpoints], make_loader(), **saving)
    second = GradMedicCallback(tmp_path / "run", transform=gm.clip.zclip(), strict=True)
    kept = tmp_path / "kept" / "last.ckpt"
    fit(Classifier(), [second], make_loader(), max_epochs=2, ckpt_path=str(kept), **saving)
    assert open_run(tmp_path / "run").steps["step"].to_pylist() == list(range(6))
    assert open_run(tmp_path / "run-2").steps["step"].to_pylist() == list(range(6, 12))
    assert torch.load(kept, weights_only=False)["callbacks"]["GradMedicCallback"]["transform"]


def test_an_exception_in_the_middle(tmp_path):
    with pytest.raises(ArithmeticError):
        fit(Classifier(fails_at=3), [GradMedicCallback(tmp_path / "run", strict=True)], make_loader())
    run = open_run(tmp_path / "run")
    assert run.steps.num_rows == 3
    assert ending_of(run) == "exception: ArithmeticError"


def test_attached_twice_and_fitted_twice(tmp_path):
    callbacks = [GradMedicCallback(tmp_path / "run", strict=True) for _ in range(2)]
    model = Classifier()
    trainer = fit(model, callbacks, make_loader())
    trainer.save_checkpoint(tmp_path / "kept.ckpt")
    states = torch.load(tmp_path / "kept.ckpt", weights_only=False)["callbacks"]
    assert list(states) == ["GradMedicCallback"]  # the second is a guest, which has nothing of its own to keep
    (tmp_path / "kept.ckpt").unlink()
    trainer.fit_loop.max_epochs = 2
    trainer.fit(model, make_loader())
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run", "run-2"]
    assert {open_run(tmp_path / name).steps.num_rows for name in ("run", "run-2")} == {6}


def test_callbacks_that_trainers_have_numbered_come_together_in_the_next():
    class Keys(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            self.seen = [each.state_key for each in trainer.callbacks if isinstance(each, GradMedicCallback)]

    first, second, keys = GradMedicCallback(strict=True), GradMedicCallback(strict=True), Keys()
    fit(Classifier(), [first], make_loader())
    with pytest.raises(ArithmeticError):
        fit(Classifier(fails_at=1), [second], make_loader())
    fit(Classifier(), [first, second, copy.deepcopy(first), keys], make_loader())
    assert keys.seen == ["GradMedicCallback", "GradMedicCallback_2", "GradMedicCallback_3"]


def test_a_copy_that_is_taken_while_a_trainer_is_at_work_has_a_key_of_its_own():
    class Copies(pl.Callback):
        def on_train_start(self, trainer, pl_module):
            self.copy = copy.deepcopy(callback)

    callback, copies = GradMedicCallback(strict=True), Copies()
    fit(Classifier(), [callback, copies], make_loader())
    assert copies.copy.state_key not in ("GradMedicCallback", callback.state_key)


def test_beside_a_watch_of_the_script(tmp_path):
    model = Classifier()
    with gm.watch(model, record=tmp_path / "theirs", strict=True):
        callback = GradMedicCallback(tmp_path / "ours", strict=True)
        fit(model, [callback], make_loader(), make_loader())
    assert not (tmp_path / "ours").exists()
    run = open_run(tmp_path / "theirs")
    assert_same(run, expected())
    assert "val_loss" in dict(run.steps["logged"].to_pylist()[-1])


def test_a_finding_stops_the_fit():
    callback = GradMedicCallback(stop_on="warning", limits=1e-6, strict=True)
    fit(Classifier(), [callback], make_loader(), max_epochs=3)
    assert callback.monitor.run.steps.num_rows == 1
    assert ending_of(callback.monitor.run) == "finished"


SCRIPT = """
import sys
sys.path[:0] = {paths!r}
from lightning_models import Classifier, fit
from plain_loops import make_loader
own = []
{own}
trainer = fit(Classifier(), own, make_loader(), make_loader(), gradient_clip_val=0.1)
names = [type(each).__name__ for each in trainer.callbacks]
assert names.count("GradMedicCallback") == {callbacks}, names
"""


OWN = "from gradmedic.integrations.lightning import GradMedicCallback; own = [GradMedicCallback('x')]"


@pytest.mark.parametrize("own", ["", OWN], ids=["without a callback", "with one"])
def test_an_unmodified_script_under_gradmedic_run(tmp_path, monkeypatch, own):
    monkeypatch.chdir(tmp_path)
    script = SCRIPT.format(paths=[], own=own, callbacks=2 if own else 1)
    code, run = watched_script(tmp_path, script)
    assert code == 0
    assert_same(run, expected(clip=0.1))
    assert "val_loss" in dict(run.steps["logged"].to_pylist()[-1])
    assert not (tmp_path / "x").exists()


def test_switched_on_by_the_environment(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(lightning_entry.VARIABLE, str(tmp_path / "run"))
    trainer = fit(Classifier(), [], make_loader())
    assert [type(each).__name__ for each in trainer.callbacks].count("GradMedicCallback") == 1
    assert_same(open_run(tmp_path / "run"), expected())
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(lightning_entry.VARIABLE, str(tmp_path / "file" / "run"))
    fit(Classifier(), [], make_loader())  # nothing can be written there, and the training goes on
    assert "goes on" in capsys.readouterr().err


def test_switched_off_it_leaves_trainers_alone():
    assert lightning_entry.callbacks() == lightning_entry.fabric_callbacks() == []
    assert "GradMedicCallback" not in [type(each).__name__ for each in pl.Trainer(**QUIET).callbacks]


def test_run_again_with_overwrite(tmp_path):
    for _ in range(2):
        fit(Classifier(), [GradMedicCallback(tmp_path / "run", overwrite=True, strict=True)], make_loader())
    assert [each.name for each in tmp_path.glob("run*")] == ["run"]
    assert open_run(tmp_path / "run").steps.num_rows == 6


def test_the_example_of_the_docs(tmp_path, monkeypatch):
    names = run_example("Lightning", tmp_path, monkeypatch)
    run = open_run(tmp_path / "runs" / "lightning")
    assert run.steps.num_rows == 20
    assert names["frame"].step == 19
    assert names["frame"].grad_norm_post <= 1.0 + 1e-5
