"""Copies, pickles, checkpoints, traces and exports of a watched model carry nothing of ours."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import gradmedic as gm
from hooks_training import batches, mlp, module_hooks, sgd, train
from hooks_training import single_thread as single_thread


@pytest.fixture(params=[0, 1, 5], ids=["before the first step", "in the first steps", "after them"])
def watched(request):
    model = mlp()
    optimizer = sgd(model)
    with gm.watch(model, optimizer, strict=True) as monitor:
        train(model, optimizer, batches(request.param))
        yield model, optimizer, monitor


def x() -> torch.Tensor:
    return batches(1)[0][0]


@pytest.mark.parametrize("how", ["deepcopy", "copy", "pickle", "torch.save"])
def test_copies_work_and_train_alone(watched, how):
    """R56: deepcopy, copy, pickle and torch.save of a watched model and its optimizer give working, unwatched ones."""
    model, optimizer, monitor = watched
    rows = monitor.run.steps.num_rows
    if how == "deepcopy":
        twin = copy.deepcopy(model)
    elif how == "copy":
        twin = copy.copy(model)
    elif how == "pickle":
        twin = pickle.loads(pickle.dumps(model))
    else:
        buffer = io.BytesIO()
        torch.save(model, buffer)
        buffer.seek(0)
        twin = torch.load(buffer, weights_only=False)
    assert torch.equal(twin(x()), model(x()))
    assert list(twin.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))
    if how != "copy":  # a shallow copy shares its parameters with the model
        train(twin, sgd(twin), batches(2))
        assert monitor.run.steps.num_rows == rows


def test_files_load_without_gradmedic(watched, tmp_path):
    """R56: a model saved whole while it was watched loads in a process that has no gradmedic."""
    model, optimizer, _ = watched
    torch.save(model, tmp_path / "model.pt")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    assert b"gradmedic" not in (tmp_path / "model.pt").read_bytes()
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    mlp().load_state_dict(state["model"])
    assert set(state["optimizer"]) == {"state", "param_groups"}


def test_a_saved_model_runs_in_a_process_without_gradmedic(tmp_path):
    """R56: the hooks of the first steps that a whole-model pickle carries do nothing, and need nothing, elsewhere."""
    model = mlp()
    with gm.watch(model, sgd(model), strict=True):
        torch.save(model, tmp_path / "model.pt")
    code = (
        "import sys; sys.modules['gradmedic'] = None\n"
        "import torch; model = torch.load(sys.argv[1], weights_only=False)\n"
        "print(tuple(model(torch.ones(3, 8)).shape))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "model.pt")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, check=False)
    assert done.stdout.strip() == "(3, 4)", done.stderr


def test_trace(watched):
    """R75: torch.jit.trace of a watched model works and computes the same."""
    model, _, _ = watched
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, x())
        torch.jit.save(traced, io.BytesIO())
    assert torch.equal(traced(x()), model(x()))
    assert "isnan" not in str(traced.graph)


@pytest.mark.parametrize("strict", [False, True])
def test_export(watched, strict):
    """R75: torch.export of a watched model works, strict and non-strict, with nothing of ours in its graph."""
    model, _, _ = watched
    exported = torch.export.export(model, (x(),), strict=strict)
    torch.testing.assert_close(exported.module()(x()), model(x()))
    operations = {str(node.target) for node in exported.graph.nodes if node.op == "call_function"}
    assert operations == {"aten.linear.default", "aten.relu.default"}


def test_script_while_paused(watched):
    """R75: `paused()` takes every hook off, for what refuses hooks of any kind, and puts watching back afterwards."""
    model, optimizer, monitor = watched
    rows = monitor.run.steps.num_rows
    with monitor.paused():
        assert module_hooks(model) == 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scripted = torch.jit.script(model)
        train(model, optimizer, batches(2))
    assert torch.equal(scripted(x()), model(x()))
    assert monitor.run.steps.num_rows == rows
    train(model, optimizer, batches(2))
    assert monitor.run.steps.num_rows == rows + 2


def test_fx_trace(watched):
    """R75: symbolic tracing sees the model's own operations only."""
    model, _, _ = watched
    graph = torch.fx.symbolic_trace(model)
    assert [node.op for node in graph.graph.nodes] == ["placeholder", *["call_module"] * 3, "output"]


def test_old_weight_norm_is_copied_no_worse_than_without_us():
    """R56: deepcopy of a model with the old weight_norm fails or works alike, watched or not."""

    def outcome(watch: bool) -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 4)))
        optimizer = sgd(model)
        monitor = gm.watch(model, optimizer, strict=True) if watch else None
        train(model, optimizer, batches(1))
        try:
            copy.deepcopy(model)
        except RuntimeError as error:
            return str(error)
        finally:
            if monitor:
                monitor.close()
        return "copied"

    assert outcome(True) == outcome(False)


def test_share_memory_and_moves(watched):
    """R49: `share_memory`, `to` and `half`/`float` of a watched model work, and training goes on being recorded."""
    model, optimizer, monitor = watched
    rows = monitor.run.steps.num_rows
    model.share_memory().to("cpu").to(torch.bfloat16).float()
    _, norms = train(model, optimizer, batches(2))
    assert monitor.run.steps.num_rows == rows + 2
    assert {name: row.norm for name, row in monitor.latest.tensors.items()} == pytest.approx(norms[-1])
