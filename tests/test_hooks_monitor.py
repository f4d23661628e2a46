"""The monitor's own interface: what it refuses, logs, observes, pauses, resumes and holds ready."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

import gradmedic as gm
from gradmedic import torch_hooks
from hooks_training import batches, cross_entropy, gradient_norms, mlp, sgd, train
from hooks_training import single_thread as single_thread

# -- what `watch` refuses ------------------------------------------------------------

REFUSED = [
    ("model", lambda m, o: ((o, m), {}), "expected a torch.nn.Module", "got SGD", "pass the model"),
    ("empty mapping", lambda m, o: (({}, o), {}), "expected a torch.nn.Module or a mapping", "got dict", "gm.watch("),
    ("bad mapping", lambda m, o: (({"a": 3}, o), {}), "expected a mapping of names", "'a': int", "torch.nn.Module"),
    ("optimizer", lambda m, o: ((m, "adam"), {}), "expected a torch.optim.Optimizer", "got str", "gm.watch(model, "),
    ("no optimizer", lambda m, o: ((m, []), {}), "expected at least one", "empty collection", "pass None"),
    ("other model's", lambda m, o: ((nn.Linear(3, 3), o), {}), "belongs to the model", "4 tensors", "optimizer=None"),
    ("frozen", lambda m, o: ((nn.Linear(1, 1).requires_grad_(False), None), {}), "no trainable", "2", "requires_grad"),
    ("no parameter", lambda m, o: ((nn.ReLU(), None), {}), "no trainable parameter", "of 0", "pass the model"),
    ("every 0", lambda m, o: ((m, o), {"every": 0}), "expected a positive number of steps", "got 0", "every=1"),
    ("every text", lambda m, o: ((m, o), {"every": "10"}), "expected a positive number", "got '10'", "every=10"),
    ("every bool", lambda m, o: ((m, o), {"every": True}), "expected a positive number", "got True", "every=1"),
    ("backend", lambda m, o: ((m, o), {"backend": "gpu"}), "expected one of auto", "got 'gpu'", "torch"),
    ("limit pattern", lambda m, o: ((m, o), {"limits": {"0.weigth": 1.0}}), "limits", "'0.weigth'", "0.weight"),
    ("limit", lambda m, o: ((m, o), {"limits": -1.0}), "limit", "-1", ""),
    ("rules", lambda m, o: ((m, o), {"rules": ["GM000"]}), "rules must be", "'GM000'", "GM101"),
    ("budget", lambda m, o: ((m, o), {"budget": "lots"}), "budget must be", "'lots'", "256MB"),
    ("modules", lambda m, o: ((m, o), {"modules": ["9"]}), "modules: the pattern", "'9'", "near names"),
    ("flow", lambda m, o: ((m, o), {"flow": {"9": 1.0}}), "flow: the pattern", "'9' matches no module", "there are: 0"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "expected", "came", "cure"), [entry[1:] for entry in REFUSED], ids=[e[0] for e in REFUSED]
)
def test_what_watch_refuses_is_explained(call, expected, came, cure):
    """R78: each message says what was expected, what came and how to mend it; nothing is attached."""
    model = mlp()
    args, kwargs = call(model, sgd(model))
    with pytest.raises(gm.InputError) as caught:
        gm.watch(*args, **kwargs)
    message = str(caught.value)
    assert expected in message
    assert came in message
    assert cure in message
    assert isinstance(caught.value, ValueError)
    assert torch_hooks.attached() == ()


def test_a_file_and_an_existing_run_are_refused(tmp_path):
    """R57: a record is never written over, and a file is no folder."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, record=tmp_path / "run"):
        train(model, optimizer, batches(2))
    with pytest.raises(gm.InputError, match="already holds a run with 2 steps"):
        gm.watch(model, optimizer, record=tmp_path / "run")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(gm.InputError, match="is a file"):
        gm.watch(model, optimizer, record=tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    assert gm.open_run(tmp_path / "run").steps.num_rows == 2


def test_a_run_is_replaced_where_that_is_asked_for(tmp_path):
    folder = tmp_path / "run"
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, record=folder):
        train(model, optimizer, batches(3))
    (folder / "notes.txt").write_text("mine")
    with gm.watch(model, optimizer, record=folder, overwrite=True) as monitor:
        train(model, optimizer, batches(2))
    assert monitor.run.steps.num_rows == gm.open_run(folder).steps.num_rows == 2
    assert (folder / "notes.txt").read_text() == "mine"
    with pytest.raises(gm.InputError, match=r"overwrite=True.*--overwrite"):
        gm.watch(model, optimizer, record=folder)
    with pytest.raises(gm.InputError, match="overwrite: expected True or False, got 'no'"):
        gm.watch(model, optimizer, record=folder, overwrite="no")


@pytest.mark.parametrize("same_model", [True, False])
def test_what_is_replaced_has_no_writer_left(tmp_path, same_model):
    """A notebook cell that is run again, its first monitor never closed, by way of another spelling of the folder."""
    model = mlp()
    optimizer = sgd(model)
    first = gm.watch(model, optimizer, record=tmp_path / "run")
    train(model, optimizer, batches(3))
    other = model if same_model else mlp()
    stepped = optimizer if same_model else sgd(other)
    with gm.watch(other, stepped, record=tmp_path / "x" / ".." / "run", overwrite=True):
        train(other, stepped, batches(2))
    first.close()
    run = gm.open_run(tmp_path / "run")
    assert run.series("step").tolist() == [0, 1]
    assert [event["kind"] for event in run.events].count("end") == 1
    assert run.problems == []


# -- log, observe, paused ------------------------------------------------------------


def test_numbers_are_logged_for_the_step_they_belong_to():
    """R59: `log` before the step is for the step under way, right after it for the one just made."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for step, (x, y) in enumerate(batches(4)):
            optimizer.zero_grad()
            loss = cross_entropy(model, x, y)
            loss.backward()
            monitor.log(loss=torch.tensor(10.0 + step, requires_grad=True), before=step, tensor=torch.tensor([step]))
            optimizer.step()
            monitor.log(after=np.float32(step), fraction=Fraction(step, 2), flag=True)
    run = monitor.run
    assert run.series("loss").tolist() == [10.0, 11.0, 12.0, 13.0]
    for name in ("before", "tensor", "after"):
        assert run.series(name).tolist() == [0, 1, 2, 3]
    assert run.series("fraction").tolist() == [0, 0.5, 1, 1.5]
    assert run.series("flag").tolist() == [1, 1, 1, 1]


def test_a_value_that_is_logged_is_the_one_of_that_moment():
    """R57: an accumulator that is changed in place after it was logged has the value that it had."""
    model = mlp()
    optimizer = sgd(model)
    total = torch.zeros(())
    with gm.watch(model, optimizer, backend="torch", every=100, strict=True) as monitor:
        for data in batches(3):
            train(model, optimizer, [data])
            total += 1
            monitor.log(total=total)
    assert monitor.run.series("total").tolist() == [1, 2, 3]


@pytest.mark.parametrize("value", ["text", torch.ones(2), None, torch.ones(1, dtype=torch.complex64), object()])
def test_what_is_no_number_is_left_out(value, capfd):
    """R78: logging something that is no number is said once and harms neither the step nor other numbers."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer) as monitor:
        for data in batches(3):
            train(model, optimizer, [data])
            monitor.log(odd=value, good=1.0)
            monitor.log(odd=value, later=2.0)
    assert monitor.run.steps.num_rows == 3
    assert monitor.run.series("good").tolist() == [1.0, 1.0, 1.0]
    assert monitor.run.series("later").tolist() == [2.0, 2.0, 2.0]
    said = [line for line in capfd.readouterr().err.splitlines() if "expected a number" in line]
    assert len(said) == 1
    with gm.watch(model, optimizer, strict=True) as monitor, pytest.raises(gm.InputError, match="odd"):
        monitor.log(odd=value)


def test_observe_is_the_boundary_where_there_is_no_optimizer():
    """R59: a loop that updates weights by hand is recorded through `observe`; the first update is not known."""
    model, rate = mlp(), 0.1
    norms, losses, updates = [], [], []
    with gm.watch(model, strict=True) as monitor:
        for x, y in batches(5):
            model.zero_grad()
            loss = cross_entropy(model, x, y)
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= rate * p.grad
            monitor.observe()
            losses.append(float(loss.detach()))
            norms.append(gradient_norms(model))
            updates.append(rate * norms[-1]["0.bias"])
    assert monitor.run.series("loss").tolist() == pytest.approx(losses)
    steps, names, values = monitor.run.matrix("norm")
    assert steps.tolist() == [0, 1, 2, 3, 4]
    assert [dict(zip(names, row, strict=True)) for row in values.tolist()] == [pytest.approx(row) for row in norms]
    _, _, changed = monitor.run.matrix("update_norm")
    at = names.index("0.bias")
    assert math.isnan(changed[0, at])
    assert changed[1:, at].tolist() == pytest.approx(updates[1:], rel=1e-5)
    assert math.isnan(monitor.run.matrix("unchanged_frac")[2][0, at])
    assert "GM106" not in {finding.code for finding in monitor.diagnose()}


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_observe_compares_neighbouring_steps_only(backend):
    """R59: with every=3, an update is that of its own step, or not known; never that of several steps."""
    model = mlp()
    changes = []
    with gm.watch(model, every=3, backend=backend, strict=True) as monitor:
        for x, y in batches(10):
            model.zero_grad()
            cross_entropy(model, x, y).backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.1 * p.grad
            changes.append(0.1 * gradient_norms(model)["0.bias"])
            monitor.observe()
    steps, names, values = monitor.run.matrix("update_norm")
    for step, value in zip(steps.tolist(), values[:, names.index("0.bias")].tolist(), strict=True):
        assert math.isnan(value) or value == pytest.approx(changes[step], rel=1e-5)


def test_nothing_is_watched_while_paused():
    """R75: between `paused()` and its end nothing is recorded and nothing of ours is attached, also when it raises."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        train(model, optimizer, batches(2))
        with pytest.raises(RuntimeError, match="mat1"), monitor.paused():
            train(model, optimizer, [*batches(3), (torch.ones(1, 3), torch.ones(1))])
        losses, _ = train(model, optimizer, batches(2))
        with monitor.paused():
            monitor.close()
        assert torch_hooks.attached() == ()
    assert monitor.run.series("loss")[2:].tolist() == pytest.approx(losses)
    assert monitor.run.steps.num_rows == 4


# -- state, schedules, flight recorder ------------------------------------------------------------


def test_a_resumed_run_goes_on_at_its_step(tmp_path):
    """R59: step counters and clip counts survive a restart; a sink that takes only rising steps is content."""

    class Strict:
        def __init__(self) -> None:
            self.steps: list[int] = []

        def emit(self, frame):
            assert not self.steps or frame.step > self.steps[-1], "a sink's step went back"
            self.steps.append(frame.step)

        def emit_finding(self, finding): ...

        def close(self): ...

    sink, model = Strict(), mlp()
    optimizer = sgd(model)
    transform = gm.clip.norm(1e-3)
    with gm.watch(model, optimizer, sinks=[sink], transform=transform, strict=True) as monitor:
        train(model, optimizer, batches(5))
        state = json.loads(json.dumps(monitor.state_dict()))
    with gm.watch(model, optimizer, sinks=[sink], transform=transform, strict=True) as monitor:
        monitor.load_state_dict(state)
        train(model, optimizer, batches(3))
        assert monitor.latest.clip_frequency == 1.0
    assert sink.steps == list(range(8))
    assert monitor.run.series("step").tolist() == [5, 6, 7]


def test_the_state_waits_for_optimizers_that_are_found_later():
    """R59: with optimizer=None the counters of an optimizer that has not stepped yet wait for it."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, strict=True) as monitor:
        train(model, optimizer, batches(4))
        state = monitor.state_dict()
    with gm.watch(model, strict=True) as monitor:
        monitor.load_state_dict(state)
        train(model, optimizer, batches(1))
    assert monitor.run.series("step").tolist() == [4]


@pytest.mark.parametrize("state", [{}, {"version": 7, "optimizers": {}}, {"model": 1}, None, [1]])
def test_a_foreign_state_is_refused(state):
    """R59: what is no state of a monitor is refused with a sentence, and changes nothing."""
    model = mlp()
    with gm.watch(model, sgd(model), strict=True) as monitor, pytest.raises(gm.InputError, match="state_dict"):
        monitor.load_state_dict(state)


@pytest.mark.parametrize(
    ("every", "kept"),
    [
        (1, list(range(12))),
        (5, [0, 5, 10]),
        (100, [0]),
        (lambda step: step in (3, 4), [3, 4]),
        (lambda step: False, []),
    ],
)
@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_every_says_which_tables_are_kept(every, kept, backend):
    """R58: tables at the steps asked for, scalars at every step."""
    model = mlp()
    optimizer = sgd(model, lr=0.01)
    with gm.watch(model, optimizer, every=every, backend=backend, strict=True) as monitor:
        losses, norms = train(model, optimizer, batches(12))
    run = monitor.run
    assert run.series("loss").tolist() == pytest.approx(losses)
    totals = [math.sqrt(sum(value**2 for value in row.values())) for row in norms]
    assert run.series("grad_norm").tolist() == pytest.approx(totals)
    if kept:
        assert run.matrix("norm")[0].tolist() == kept
    else:
        assert run.tensors.num_rows == 0


def test_the_flight_recorder_brings_the_steps_before(tmp_path):
    """R58: with every=10, a NaN at step 57 brings the tables of the steps before it, its own and those after.

    Without the kernel a table is no by-product: there are those that were asked for, and those after the trouble.
    """
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, record=tmp_path / "run", every=10, strict=True) as monitor:
        for step, (x, y) in enumerate(batches(70)):
            optimizer.zero_grad()
            loss = cross_entropy(model, x, y)
            (loss * float("nan") if step == 57 else loss).backward()
            if step != 57:
                optimizer.step()
            else:
                saved = [p.detach().clone() for p in model.parameters()]
                optimizer.step()
                with torch.no_grad():
                    for p, old in zip(model.parameters(), saved, strict=True):
                        p.copy_(old)
                optimizer.state.clear()
    del monitor
    run = gm.open_run(tmp_path / "run")
    steps, _, values = run.matrix("norm")
    kept = gm.stats.native_available()
    assert steps.tolist() == [*(range(58) if kept else range(0, 58, 10)), *range(58, 70)]
    assert np.isfinite(values[steps < 57]).all()
    if kept:
        assert run.matrix("nan_count")[2][57].min() > 0
    assert [event["step"] for event in run.events if event["kind"] == "origin"] == [57]


def test_records_are_plain_and_strict(tmp_path):
    """R57: whatever was logged and however sick the run, every line of the events is strict JSON, every value plain."""
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, record=tmp_path / "run", limits=1e-9, strict=True) as monitor:
        for step, (x, y) in enumerate(batches(6)):
            optimizer.zero_grad()
            (cross_entropy(model, x, y) * (float("inf") if step == 4 else 1.0)).backward()
            monitor.log(tensor=torch.tensor(float("nan")), number=np.float64("inf"))
            optimizer.step()

    def refuse(text):
        raise AssertionError(f"{text} is no strict JSON")

    for file in (tmp_path / "run").iterdir():
        if file.suffix in (".jsonl", ".json"):
            for line in file.read_text().splitlines():
                json.loads(line, parse_constant=refuse)
    for frame in gm.open_run(tmp_path / "run").frames():
        plain = [frame.loss, frame.grad_norm, frame.clip_scale, *frame.logged.values()]
        assert all(type(value) is float for value in plain)


def test_frames_hold_no_tensor():
    """R57: what a sink is given are plain numbers and arrays."""
    frames: list[gm.Frame] = []

    class Keep:
        def emit(self, frame):
            frames.append(frame)

        def emit_finding(self, finding): ...

        def close(self): ...

    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, sinks=[Keep()], strict=True) as monitor:
        for data in batches(3):
            monitor.log(mine=torch.tensor(1.0))
            train(model, optimizer, [data])
    for frame in frames:
        values = [getattr(frame, name) for name in gm.Frame.__dataclass_fields__ if name != "tensors"]
        assert not any(isinstance(value, torch.Tensor) for value in [*values, *frame.logged.values()])
        assert all(type(column) is np.ndarray for column in frame.tensors.columns.values())
        assert type(frame.tensors["0.weight"].norm) is float
        assert type(frame.tensors["0.weight"].numel) is int


def test_a_monitor_that_is_closed_can_be_paused_without_a_word_in_its_record():
    model = torch.nn.Linear(2, 1)
    monitor = gm.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), strict=True)
    with monitor.paused():
        pass
    monitor.close()
    with monitor.paused():
        pass
    assert [event["kind"] for event in monitor.run.events].count("paused") == 1
