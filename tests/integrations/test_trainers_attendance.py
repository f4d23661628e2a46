"""What the callbacks of all trainers share: arguments, folders, hosts, metrics, and libraries that are not there."""

from __future__ import annotations

import importlib
import importlib.metadata
import subprocess
import sys

import pytest
import torch
from plain_loops import cross_entropy, ending_of, make_loader, make_net
from torch import nn

import gradmedic as gm
from gradmedic.errors import InputError
from gradmedic.integrations.attendance import Attendance
from gradmedic.integrations.fabric import GradMedicCallback
from gradmedic.integrations.free_folders import folder_to_replace, free_folder, sole
from gradmedic.integrations.libraries import library_class, require
from gradmedic.integrations.optimizer_names import name_optimizers
from gradmedic.record import open_run

FACES = {
    "lightning": ("GradMedicCallback", "lightning"),
    "transformers": ("GradMedicCallback", "transformers"),
    "accelerate": ("GradMedicTracker", "accelerate"),
    "keras": ("GradMedicCallback", "keras"),
    "skorch": ("GradMedicCallback", "skorch"),
}


def train(model, optimizer, steps=3):
    for batch in list(make_loader())[:steps]:
        cross_entropy(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()


def make_pair():
    model = make_net()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("face", FACES)
def test_a_library_that_is_missing_or_too_old_is_named_with_its_extra(face, monkeypatch):
    name, extra = FACES[face]
    module = importlib.import_module(f"gradmedic.integrations.{face}")
    monkeypatch.delitem(vars(module), name, raising=False)
    monkeypatch.setattr(importlib, "import_module", lambda _: None)

    def missing(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(InputError, match=rf"not installed .*pip install 'gradmedic\[{extra}\]'"):
        getattr(module, name)
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.3.99")
    with pytest.raises(InputError, match=rf"or later is needed here, 0.3.99 is .*'gradmedic\[{extra}\]' --upgrade"):
        getattr(module, name)
    with pytest.raises(AttributeError, match="Unknown"):
        module.Unknown  # noqa: B018


def test_versions_are_compared_as_numbers():
    assert require("json", package="pytest", extra="x", minimum="2.9.10").__name__ == "json"
    with pytest.raises(InputError, match="is installed"):
        require("json", package="pytest", extra="x", minimum="1000.1")


def test_importing_the_rooms_imports_no_library():
    names = [
        f"gradmedic.integrations.{name}" for name in (*FACES, "ignite", "fabric", "lightning_entry", "keras_steps")
    ]
    script = f"""
import importlib, sys
for name in {names!r}: importlib.import_module(name)
print(sorted({{'lightning', 'transformers', 'accelerate', 'keras', 'ignite', 'skorch'}} & set(sys.modules)))
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_the_class_is_made_once_under_its_public_name():
    namespace = {"__name__": "somewhere"}
    made = library_class(namespace, "Callback", GradMedicCallback, dict)
    assert library_class(namespace, "Callback", GradMedicCallback, dict) is made
    assert (made.__module__, made.__qualname__, made.__doc__) == ("somewhere", "Callback", GradMedicCallback.__doc__)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"evry": 2}, "evry: expected an argument of gm.watch: every"), ({"stop_on": "fatal"}, "expected one of info")],
)
def test_wrong_arguments_are_said_when_the_callback_is_made(wrong, said):
    with pytest.raises(InputError, match=said):
        GradMedicCallback("runs/x", **wrong)


def test_wrong_arguments_of_the_watching_are_raised_unless_nobody_asked(capsys):
    model, optimizer = make_pair()
    with pytest.raises(InputError, match="limits"):
        Attendance(None, None, {"limits": {"nothing.*": 1.0}}).begin(model, optimizer)
    gentle = Attendance(None, None, {"limits": {"nothing.*": 1.0}}, gentle=True)
    gentle.begin(model, optimizer)
    assert not gentle.is_open
    assert "not watched in full: limits" in capsys.readouterr().err


def test_a_folder_that_holds_a_run_is_numbered(tmp_path, monkeypatch):
    assert free_folder(None) is None
    assert free_folder(tmp_path / "run") == tmp_path / "run"
    for expected in ("run", "run-2", "run-3"):
        attendance = Attendance(tmp_path / "run", None, {})
        attendance.begin(*make_pair())
        attendance.end()
        assert (tmp_path / expected / "run.json").exists()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert free_folder(tmp_path / "run") == tmp_path / "run"  # the ranks of a job share it


def steps_in(folder):
    return open_run(folder).steps.num_rows


@pytest.mark.parametrize("whole_process", [False, True])
def test_overwrite_replaces_what_earlier_callbacks_have_left_and_nothing_of_its_own(tmp_path, whole_process):
    """A program that trains twice with one callback, run three times."""
    for steps in (3, 2, 1):
        callback = GradMedicCallback(tmp_path / "run", overwrite=True, strict=True)
        for further in (0, 1):
            model, optimizer = make_pair()
            callback._attendance.begin(*((None, None) if whole_process else (model, optimizer)))
            train(model, optimizer, steps + further)
            callback.close()
        assert sorted(each.name for each in tmp_path.iterdir()) == ["run", "run-2"]
        assert (steps_in(tmp_path / "run"), steps_in(tmp_path / "run-2")) == (steps, steps + 1)


def test_overwrite_spares_a_run_that_this_process_still_writes(tmp_path):
    pairs = [make_pair() for _ in range(3)]
    with gm.watch(*pairs[0], record=tmp_path / "run") as monitor:
        train(*pairs[0])
        second, third = (Attendance(tmp_path / "x" / ".." / "run", None, {"overwrite": True}) for _ in range(2))
        second.begin(*pairs[1])
        third.begin(*pairs[2])
        for pair in pairs:
            train(*pair, steps=2)
        second.end()
        third.end()
    assert monitor.run.steps.num_rows == 5
    assert [steps_in(tmp_path / name) for name in ("run", "run-2", "run-3")] == [5, 2, 2]


WRITER = """
import sys, torch, gradmedic as gm
model = torch.nn.Linear(2, 1)
gm.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), record=sys.argv[1], overwrite=True)
print("begun", flush=True)
sys.stdin.read()
"""


def test_overwrite_spares_a_run_that_another_process_still_writes_and_no_dead_one(tmp_path):
    def begin(name):
        attendance = Attendance(tmp_path / name, None, {"overwrite": True})
        attendance.begin(*make_pair())
        attendance.end()

    writer = [sys.executable, "-c", WRITER, str(tmp_path / "run")]
    with subprocess.Popen(writer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "begun\n"
        begin("run")
        assert {each.name for each in tmp_path.iterdir()} == {"run", "run-2"}
        other.kill()
        other.wait()
    begin("run")
    assert {each.name for each in tmp_path.iterdir()} == {"run", "run-2"}
    assert ending_of(open_run(tmp_path / "run")) == "finished"


def test_overwrite_replaces_what_an_exception_has_left_behind(tmp_path):
    model, optimizer = make_pair()
    for steps in (3, 2):
        attendance = Attendance(tmp_path / "run", None, {"overwrite": True, "strict": True})
        attendance.begin(model, optimizer)
        train(model, optimizer, steps)
    attendance.end()
    assert [each.name for each in tmp_path.iterdir()] == ["run"]
    assert steps_in(tmp_path / "run") == 2


def test_ranks_of_a_job_agree_on_what_they_replace(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "run" / ".gradmedic-begins").mkdir(parents=True)
    assert folder_to_replace(tmp_path / "run", ()) == tmp_path / "run"
    assert folder_to_replace(tmp_path / "run", {str(tmp_path / "run")}) == f"{tmp_path / 'run'}-2"
    assert folder_to_replace(None, ()) is None


def test_a_folder_that_another_process_takes_after_the_look_is_left_to_it(tmp_path, monkeypatch):
    """Two jobs of a grid search: the other begins its record between our look for a folder and our beginning."""
    others = []

    def look(record):
        folder = free_folder(record)
        if not others:
            others.append(gm.watch(*make_pair(), record=folder))
        return folder

    monkeypatch.setattr("gradmedic.integrations.attendance.free_folder", look)
    attendance = Attendance(tmp_path / "run", None, {"strict": True})
    attendance.begin(*make_pair())
    attendance.end()
    others[0].close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["run", "run-2"]
    assert {len(list((tmp_path / name).glob("run*.json"))) for name in ("run", "run-2")} == {1}


def test_a_folder_is_one_trainers_alone_while_its_record_begins(tmp_path):
    with sole(tmp_path / "run") as first, sole(tmp_path / "run") as second:
        assert (first, second) == (True, False)
        assert free_folder(tmp_path / "run") == f"{tmp_path / 'run'}-2"
    assert not list(tmp_path.iterdir())
    (tmp_path / "run").mkdir()
    with sole(tmp_path / "run") as ours:
        assert ours
    assert not list((tmp_path / "run").iterdir())


def test_a_record_that_is_a_file_is_still_said(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        Attendance(tmp_path / "run", None, {}).begin(*make_pair())
    assert (tmp_path / "run").read_text() == "mine"


@pytest.mark.parametrize("state", [[1, 2], {"x": 1}, "text"])
def test_a_state_that_is_not_ours_is_said_and_training_goes_on_watched(state, capsys):
    model, optimizer = make_pair()
    attendance = Attendance(None, None, {"strict": True})
    attendance.load_state_dict(state)
    attendance.begin(model, optimizer)
    train(model, optimizer)
    attendance.end()
    assert attendance.monitor.run.steps["step"].to_pylist() == [0, 1, 2]
    assert capsys.readouterr().err.count("state is not taken over, and steps are counted anew: state: expected") == 1


def test_a_second_attendance_is_a_guest_of_the_first(tmp_path):
    model, optimizer = make_pair()
    first, second = (Attendance(tmp_path / name, None, {"strict": True}) for name in ("one", "two"))
    first.begin(model, optimizer)
    second.begin(model, optimizer)
    train(model, optimizer)
    second.log({"accuracy": 0.5})
    second.end()
    assert first.is_open
    first.end()
    run = open_run(tmp_path / "one")
    assert run.steps.num_rows == 3
    assert dict(run.steps["logged"].to_pylist()[-1]) == {"accuracy": 0.5}
    assert not (tmp_path / "two").exists()


def test_what_an_earlier_training_left_open_is_replaced(tmp_path):
    model, optimizer = make_pair()
    left, fresh = (Attendance(tmp_path / name, None, {"strict": True}) for name in ("one", "two"))
    left.begin(model, optimizer)
    train(model, optimizer)
    fresh.begin(model, optimizer)
    train(model, optimizer)
    fresh.end()
    assert ending_of(open_run(tmp_path / "one")) == "attached anew"
    assert open_run(tmp_path / "two").steps.num_rows == 3


def test_a_guest_stops_for_findings_of_its_host():
    model, optimizer = make_pair()
    with gm.watch(model, optimizer, limits=1e-6, strict=True):
        guest = Attendance(None, "warning", {})
        guest.begin(model, optimizer)
        assert not guest.should_stop()
        train(model, optimizer)
        assert any(guest.should_stop() for _ in range(16))


def test_the_callback_of_the_user_is_called_as_well():
    heard = []
    model, optimizer = make_pair()
    attendance = Attendance(None, "warning", {"limits": 1e-6, "on_finding": heard.append})
    attendance.begin(model, optimizer)
    train(model, optimizer)
    assert attendance.should_stop()
    assert [finding.code for finding in heard] == ["GM412"]
    attendance.end()


def test_only_numbers_are_logged_and_the_loss_of_the_step_is_kept():
    model, optimizer = make_pair()
    attendance = Attendance(None, None, {"strict": True})
    attendance.begin(model, optimizer)
    train(model, optimizer, steps=1)
    odd = {"<script>": 1, "损失\n": 2.5, "x" * 300: float("nan")}
    attendance.log({"loss": 9.0, "flag": True, "text": "no", "grid": torch.zeros(2), "t": torch.tensor(3.0), **odd})
    frame = attendance.monitor.latest
    attendance.end()
    (row,) = attendance.monitor.run.steps.to_pylist()
    logged = dict(row["logged"])
    assert set(logged) == {"logged_loss", "t", *odd}
    assert (logged["logged_loss"], logged["t"]) == (9.0, 3.0)
    assert row["loss"] == frame.loss != 9.0


def test_optimizers_are_named_after_what_they_step():
    model = nn.ModuleDict({"generator": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "critic": nn.Linear(2, 1)})

    def sgd(*parts):
        return torch.optim.SGD([p for part in parts for p in part.parameters()], lr=0.1)

    both, generator, first = sgd(model), sgd(model["generator"]), sgd(model["generator"][0])
    assert name_optimizers(model, []) is None
    assert name_optimizers(model, [generator]) == {"optimizer": generator}
    assert name_optimizers(model, [first, generator, both]) == {
        "generator.0": first,
        "generator": generator,
        "optimizer": both,
    }
    again = sgd(model["generator"])
    assert list(name_optimizers(model, [generator, again])) == ["generator", "generator_2"]
    assert name_optimizers(model, [generator, sgd(nn.Linear(2, 2))]) is None
