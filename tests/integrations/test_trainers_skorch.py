"""skorch: a net that is fitted with the callback, beside the same loop by hand."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from plain_loops import assert_same, cross_entropy, ending_of, make_data, make_loader, make_net, own_errors, plain_loop
from skorch import NeuralNetClassifier
from skorch.callbacks import GradientNormClipping
from torch import nn
from trainer_docs import run_example

from gradmedic.integrations.skorch import GradMedicCallback
from gradmedic.record import open_run

ARGUMENTS = {
    "criterion": nn.CrossEntropyLoss,
    "optimizer": torch.optim.SGD,
    "lr": 0.1,
    "batch_size": 8,
    "verbose": 0,
    "train_split": None,
    "iterator_train__shuffle": False,
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = make_net()

    def forward(self, x):
        return self.layers(x)


def fit(*callbacks, **changes):
    net = NeuralNetClassifier(Net, callbacks=list(callbacks), **{**ARGUMENTS, "max_epochs": 2, **changes})
    return net.fit(*(each.numpy() for each in make_data()))


def expected(clip=None):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return plain_loop(model, optimizer, [*make_loader(), *make_loader()], cross_entropy, clip=clip)


def test_same_numbers_as_a_plain_loop(tmp_path):
    callback = GradMedicCallback(tmp_path / "run", strict=True)
    fit(callback)
    run = open_run(tmp_path / "run")
    assert_same(run, expected())
    assert ending_of(run) == "finished"
    assert "layers.2.weight" in run.tensors["name"].to_pylist()
    assert not own_errors(run)


def test_clipping_by_skorch(tmp_path):
    callback = GradMedicCallback(strict=True)
    fit(callback, GradientNormClipping(0.1))
    assert_same(callback.monitor.run, expected(clip=0.1))


def test_weights_are_those_of_an_unwatched_fit():
    watched, alone = fit(GradMedicCallback(strict=True)), fit()
    for one, other in zip(watched.module_.parameters(), alone.module_.parameters(), strict=True):
        assert torch.equal(one, other)


def test_scores_are_logged_with_the_last_step_of_the_epoch():
    from skorch.dataset import ValidSplit

    callback = GradMedicCallback(strict=True)
    net = fit(callback, train_split=ValidSplit(3))
    logged = [dict(row) for row in callback.monitor.run.steps["logged"].to_pylist()]
    per_epoch = len(logged) // 2
    assert [bool(row) for row in logged] == [False, False, False, True] * 2
    assert logged[per_epoch - 1]["valid_loss"] == pytest.approx(net.history[0, "valid_loss"])


def test_fit_twice_leaves_two_runs(tmp_path):
    callback = GradMedicCallback(tmp_path / "run", strict=True)
    net = fit(callback)
    net.fit(*(each.numpy() for each in make_data()))
    assert open_run(tmp_path / "run").steps.num_rows == open_run(tmp_path / "run-2").steps.num_rows == 12


def test_an_exception_in_the_middle(tmp_path):
    x, y = (each.numpy() for each in make_data())
    y = np.where(np.arange(len(y)) == 20, 7, y)  # a class that there is not
    with GradMedicCallback(tmp_path / "run", strict=True) as callback:
        net = NeuralNetClassifier(Net, callbacks=[callback], **ARGUMENTS)
        with pytest.raises(IndexError):
            net.fit(x, y)
        assert open_run(tmp_path / "run").steps.num_rows >= 0
    run = open_run(tmp_path / "run")
    assert run.steps.num_rows == 2
    assert ending_of(run) == "left by the trainer"


def test_a_finding_stops_the_fit():
    callback = GradMedicCallback(stop_on="warning", limits=1e-6, strict=True)
    fit(callback)
    assert callback.monitor.run.steps.num_rows == 1
    assert ending_of(callback.monitor.run) == "stopped by a finding"


def test_copies_carry_the_arguments():
    callback = GradMedicCallback("runs/x", stop_on="error", every=2)
    fitted = fit(GradMedicCallback(every=2))
    for copied in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert (copied.record, copied.stop_on, copied.options) == ("runs/x", "error", {"every": 2})
    again = pickle.loads(pickle.dumps(fitted))
    assert again.callbacks[0].monitor is None
    from sklearn.base import clone

    assert clone(fitted).callbacks[0].options == {"every": 2}


def test_run_again_with_overwrite(tmp_path):
    for _ in range(2):
        fit(GradMedicCallback(tmp_path / "run", overwrite=True, strict=True))
    assert [each.name for each in tmp_path.glob("run*")] == ["run"]
    assert open_run(tmp_path / "run").steps.num_rows == 12


def test_the_example_of_the_docs(tmp_path, monkeypatch):
    names = run_example("skorch", tmp_path, monkeypatch)
    assert open_run(tmp_path / "runs" / "skorch").steps.num_rows == names["steps"] == 3
