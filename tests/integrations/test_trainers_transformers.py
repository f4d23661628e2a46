"""Transformers: a trainer with the callback, beside the same loop by hand."""

from __future__ import annotations

import math
import os

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import pytest
import torch
from plain_loops import assert_same, ending_of, own_errors, plain_loop, watched_script
from trainer_docs import run_example
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import TrainerControl

import gradmedic as gm
from gradmedic.integrations.transformers import STATE_FILE, GradMedicCallback, torch_optimizer
from gradmedic.record import open_run

ROWS, BATCH = 24, 4


def make_model(**changes):
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    without_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(vocab_size=32, max_position_embeddings=16, **sizes, **without_dropout, **changes)
    return BertForSequenceClassification(config)


def make_rows(number=ROWS):
    generator = torch.Generator().manual_seed(1)
    return [
        {"input_ids": torch.randint(1, 32, (6,), generator=generator), "labels": torch.tensor(at % 2)}
        for at in range(number)
    ]


def arguments(folder, **changes):
    settings = {
        "max_steps": 6,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 0.01,
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential",
        "save_strategy": "no",
        "logging_steps": 1,
        "disable_tqdm": True,
        "report_to": [],
        "use_cpu": True,
    }
    return TrainingArguments(str(folder / "out"), **{**settings, **changes})


def train(folder, *callbacks, model=None, rows=None, resume=None, evaluate=None, **changes):
    settings = arguments(folder, **changes)
    rows = make_rows() if rows is None else rows
    model = make_model() if model is None else model
    trainer = Trainer(model, settings, train_dataset=rows, eval_dataset=evaluate, callbacks=list(callbacks))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def loss_of(model, batch):
    return model(**batch).loss


def expected(clip=1.0, accumulate=1, autocast=None, steps=6):
    """The loss of this model is a mean over each micro-batch, and the trainer adds these up without dividing them."""
    model = make_model()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    rows = make_rows()
    chunks = [rows[at : at + BATCH] for at in range(0, len(rows), BATCH)]
    batches = [{key: torch.stack([row[key] for row in chunk]) for key in chunk[0]} for chunk in chunks]
    needed = [batches[at % len(batches)] for at in range(steps * accumulate)]
    return plain_loop(
        model, optimizer, needed, loss_of, clip=clip, accumulate=accumulate, autocast=autocast, divide=False
    )


@pytest.mark.parametrize(
    ("options", "loop", "rel"),
    [
        ({}, {}, 1e-4),
        ({"max_grad_norm": 0.05}, {"clip": 0.05}, 1e-4),
        ({"max_grad_norm": 0.05, "gradient_accumulation_steps": 2}, {"clip": 0.05, "accumulate": 2}, 1e-4),
        ({"bf16": True, "max_grad_norm": 0.05}, {"clip": 0.05, "autocast": torch.bfloat16}, 2e-2),
        ({"max_grad_norm": 0}, {"clip": None}, 1e-4),
    ],
    ids=["plain", "clip", "accumulate", "bf16", "no clip"],
)
def test_same_numbers_as_a_plain_loop(tmp_path, options, loop, rel):
    callback = GradMedicCallback(strict=True)
    train(tmp_path, callback, **options)
    run = callback.monitor.run
    assert_same(run, expected(**loop), rel=rel)
    assert run.steps["micro_batches"].to_pylist() == [loop.get("accumulate", 1)] * 6
    assert ending_of(run) == "finished"
    assert not own_errors(run)
    limit = options.get("max_grad_norm", 1.0) or None
    assert run.steps["clip_threshold"].to_pylist() == [limit] * 6  # measuring is no clipping


def test_the_callback_sees_what_events_of_the_trainer_do_not(tmp_path):
    seen = []

    class AtTheEvent(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
            seen.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])))

    callback = GradMedicCallback(strict=True)
    train(tmp_path, callback, AtTheEvent(), max_grad_norm=0.02)
    assert callback.monitor.run.steps["grad_norm_post"].to_pylist() == pytest.approx(seen, rel=1e-4)
    assert min(callback.monitor.run.steps["grad_norm"].to_pylist()) > 0.03


def test_the_loss_is_the_raw_one(tmp_path):
    class Poisoned(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = make_model(), 0

        def forward(self, input_ids, labels):
            out = self.inner(input_ids=input_ids, labels=labels)
            self.calls += 1
            return {"loss": out.loss * float("nan") if self.calls == 3 else out.loss, "logits": out.logits}

    callback = GradMedicCallback(tmp_path / "run", strict=True)
    trainer = train(tmp_path, callback, model=Poisoned(), max_steps=3)
    logged = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    assert all(map(math.isfinite, logged))
    losses = open_run(tmp_path / "run").steps["loss"].to_pylist()
    assert [math.isnan(loss) for loss in losses] == [False, False, True]


def test_weights_are_those_of_an_unwatched_training(tmp_path):
    watched, alone = train(tmp_path, GradMedicCallback(strict=True)), train(tmp_path)
    for one, other in zip(watched.model.parameters(), alone.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_evaluations_make_no_steps_and_leave_their_metrics(tmp_path):
    callback = GradMedicCallback(strict=True)
    trainer = train(tmp_path, callback, evaluate=make_rows(8), eval_strategy="steps", eval_steps=3)
    logged = [dict(row) for row in callback.monitor.run.steps["logged"].to_pylist()]
    assert [bool(row) for row in logged] == [False, False, True] * 2
    told = [row["eval_loss"] for row in trainer.state.log_history if "eval_loss" in row]
    assert [row["eval_loss"] for row in logged if row] == pytest.approx(told)


def test_resumed_from_a_checkpoint_it_counts_on(tmp_path):
    saving = {"save_strategy": "steps", "save_steps": 4}
    train(tmp_path, GradMedicCallback(tmp_path / "run", transform=gm.clip.zclip(), strict=True), **saving, max_steps=4)
    kept = tmp_path / "out" / "checkpoint-4"
    assert (kept / STATE_FILE).is_file()
    second = GradMedicCallback(tmp_path / "run", transform=gm.clip.zclip(), strict=True)
    train(tmp_path, second, resume=str(kept), **saving)
    assert open_run(tmp_path / "run").steps["step"].to_pylist() == [0, 1, 2, 3]
    assert open_run(tmp_path / "run-2").steps["step"].to_pylist() == [4, 5]


def test_resumed_with_a_state_file_of_another_make_it_counts_anew(tmp_path, capsys):
    saving = {"save_strategy": "steps", "save_steps": 4}
    train(tmp_path, **saving, max_steps=4)
    kept = tmp_path / "out" / "checkpoint-4"
    torch.save([1, 2], kept / STATE_FILE)
    trainer = train(tmp_path, GradMedicCallback(tmp_path / "run", strict=True), resume=str(kept))
    assert trainer.state.global_step == 6
    assert open_run(tmp_path / "run").steps["step"].to_pylist() == [0, 1]
    assert capsys.readouterr().err.count("the checkpoint's state is not taken over") == 1


def test_an_exception_in_the_middle(tmp_path):
    rows = make_rows()
    rows[14]["labels"] = torch.tensor(7)  # a class that there is not, in the fourth batch
    with pytest.raises(IndexError), GradMedicCallback(tmp_path / "run", strict=True) as callback:
        train(tmp_path, callback, rows=rows)
    run = open_run(tmp_path / "run")
    assert run.steps.num_rows == 3
    assert ending_of(run) == "exception: IndexError"


def test_what_an_exception_left_behind_is_replaced(tmp_path):
    """No `with` block: the program goes on with the same model, and another trainer."""
    model, rows = make_model(), make_rows()
    rows[14]["labels"] = torch.tensor(7)
    with pytest.raises(IndexError):
        train(tmp_path, GradMedicCallback(tmp_path / "run", strict=True), model=model, rows=rows)
    train(tmp_path, GradMedicCallback(tmp_path / "run", strict=True), model=model)
    assert ending_of(open_run(tmp_path / "run")) == "attached anew"
    assert open_run(tmp_path / "run-2").steps.num_rows == 6


def test_attached_twice_and_trained_twice(tmp_path):
    callbacks = [GradMedicCallback(tmp_path / "run", strict=True) for _ in range(2)]
    trainer = train(tmp_path, *callbacks)
    trainer.train()
    assert {each.name for each in tmp_path.iterdir()} >= {"run", "run-2"}
    assert {open_run(tmp_path / name).steps.num_rows for name in ("run", "run-2")} == {6}
    assert not (tmp_path / "run-3").exists()


def test_a_finding_stops_the_trainer_through_its_control(tmp_path):
    callback = GradMedicCallback(stop_on="warning", limits=1e-6, strict=True)
    trainer = train(tmp_path, callback)
    assert trainer.state.global_step == callback.monitor.run.steps.num_rows == 1
    assert ending_of(callback.monitor.run) == "finished"


def test_a_fault_of_ours_is_said_once_and_nothing_else(tmp_path, capsys):
    callback = GradMedicCallback(stop_on="error")
    callback._attendance.should_stop = lambda: 1 / 0
    trainer = train(tmp_path, callback)
    assert trainer.state.global_step == 6
    assert capsys.readouterr().err.count("not watched in full: division by zero") == 1


def test_the_optimizer_of_an_engine_is_left_to_be_found():
    class Engine:
        optimizer = None

    real = torch.optim.SGD(make_model().parameters(), lr=0.1)
    wrapper = Engine()
    wrapper.optimizer = real
    assert torch_optimizer(wrapper) is real
    assert torch_optimizer(Engine()) is None
    assert torch_optimizer(None) is None
    assert TrainerControl().should_training_stop is False


SCRIPT = """
import pathlib
from test_trainers_transformers import make_rows, train
{own}
train(pathlib.Path("."), *own, max_grad_norm=0.05, evaluate=make_rows(4), eval_strategy="steps", eval_steps=6)
"""
OWN = "from gradmedic.integrations.transformers import GradMedicCallback; own = [GradMedicCallback('x')]"


@pytest.mark.parametrize("own", ["own = []", OWN], ids=["without a callback", "with one"])
def test_an_unmodified_script_under_gradmedic_run(tmp_path, monkeypatch, own):
    monkeypatch.chdir(tmp_path)
    code, run = watched_script(tmp_path, SCRIPT.format(own=own))
    assert code == 0
    assert_same(run, expected(clip=0.05), rel=1e-4)
    assert not (tmp_path / "x").exists()
    assert bool(dict(run.steps["logged"].to_pylist()[-1])) == (own == OWN)


def test_run_again_with_overwrite(tmp_path):
    for _ in range(2):
        train(tmp_path / "out", GradMedicCallback(tmp_path / "run", overwrite=True, strict=True))
    assert [each.name for each in tmp_path.glob("run*")] == ["run"]
    assert open_run(tmp_path / "run").steps.num_rows == 6


def test_the_example_of_the_docs(tmp_path, monkeypatch):
    names = run_example("Transformers", tmp_path, monkeypatch)
    assert open_run(tmp_path / "runs" / "transformers").steps.num_rows == 20
    assert names["frame"].step == 19
