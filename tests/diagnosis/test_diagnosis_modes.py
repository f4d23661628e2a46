"""GM109 wrong-mode and GM113 tiny-batch-norm: trainings in the wrong mode, and those that only look like it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from diagnosis_frames import FakeRun, digits, frames
from diagnosis_judging import judge
from torch import nn

import gradmedic as gm

Hook = Callable[[int, nn.Module], object]
FALLING = [2.0 - i / 1000 for i in range(300)]
FLAT = [2.0] * 300


class Net(nn.Module):
    """A table of digits with normalisation by a module and dropout."""

    def __init__(self, norm: bool = True, dropout: float = 0.2) -> None:
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.fc2(self.drop(F.relu(self.norm(self.fc1(x)))))
        return result


def train(model: nn.Module, hook: Hook = lambda step, model: None, steps: int = 60, rows: int = 64, every: int = 50):
    """What is found in a training whose `hook` is called before each forward pass."""
    torch.set_num_threads(1)
    batches = digits()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    with gm.watch(model, optimizer, strict=True, rules=["GM109", "GM113"], modules_every=every) as monitor:
        for step in range(steps):
            hook(step, model)
            x, y = batches(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x[:rows]), y[:rows]).backward()
            optimizer.step()
    return monitor.findings


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def pretrained() -> Net:
    model = Net()
    for step in range(5):
        model(digits()(step)[0])
    return model


def set_eval(step: int, model: nn.Module) -> None:
    model.eval()


def freeze_norm(step: int, model: nn.Module) -> None:
    model.norm.eval()


# -- GM109 ------------------------------------------------------------------------------------------------------------


def test_evaluation_mode_from_the_start_is_said_in_the_third_step():
    """F46: normalisation whose statistics were never written."""
    [found] = train(Net(), set_eval, steps=3)
    assert (found.code, found.variant, found.severity, found.step) == ("GM109", "never", "error", 0)
    assert found.where == ("norm", "drop")


def test_left_in_evaluation_mode_after_an_evaluation():
    [found] = train(Net(), lambda step, model: model.eval() if step == 17 else None, steps=27)
    assert (found.code, found.variant, found.severity, found.step) == ("GM109", "left", "warning", 17)


def test_dropout_alone_is_enough():
    [found] = train(Net(norm=False), lambda step, model: model.eval() if step == 5 else None)
    assert (found.variant, found.severity, found.where, found.step) == ("left", "warning", ("drop",), 5)


def evaluate_every_tenth(step: int, model: nn.Module) -> None:
    if step % 10 == 9:
        model.eval()
        model(digits()(step)[0])
        model.train()


@pytest.mark.parametrize(
    ("model", "hook"),
    [
        (Net, lambda step, model: None),
        (Net, evaluate_every_tenth),
        (Net, lambda step, model: model.train(step % 15 < 10)),  # a few steps only, again and again
        (lambda: Net(norm=False, dropout=0.0), set_eval),  # nothing in it knows the difference
    ],
    ids=["training", "evaluated in between", "short", "no mode"],
)
def test_quiet(model, hook):
    assert train(model(), hook) == []


@pytest.mark.parametrize(("hook", "variant"), [(set_eval, "fine_tuning"), (freeze_norm, "layers")])
def test_fine_tuning_with_frozen_statistics_is_a_note(hook, variant):
    """H26."""
    assert [(f.variant, f.severity) for f in train(pretrained(), hook, every=20)] == [(variant, "info")]


def test_a_single_normalisation_without_statistics():
    [found] = train(Net(), freeze_norm, every=20)
    assert (found.variant, found.severity, found.where) == ("layers_never", "warning", ("norm",))


def test_a_frozen_backbone_in_evaluation_mode():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.head = Net().requires_grad_(False), nn.Linear(10, 10)

        def forward(self, x):
            return self.head(self.backbone(x))

    found = train(Both(), lambda step, model: model.backbone.eval(), every=10)
    assert [f for f in found if f.severity != "info"] == []


def test_a_discriminator_that_judges_in_evaluation_mode():
    """GAN: it is in training mode in its own steps, and nothing of it is left on."""
    torch.manual_seed(0)
    maker, judge_ = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)), Net(norm=False)
    judge_.fc1, judge_.fc2 = nn.Linear(4, 8), nn.Linear(8, 1)
    first, second = torch.optim.Adam(maker.parameters()), torch.optim.Adam(judge_.parameters())
    with gm.watch({"g": maker, "d": judge_}, [first, second], strict=True, rules=["GM109"]) as monitor:
        for _ in range(30):
            judge_.train()
            second.zero_grad()
            (judge_(maker(torch.randn(8, 4)).detach()).mean() - judge_(torch.randn(8, 4)).mean()).backward()
            second.step()
            judge_.eval()
            first.zero_grad()
            (-judge_(maker(torch.randn(8, 4))).mean()).backward()
            first.step()
    assert [f for f in monitor.findings if f.severity != "info"] == []


# -- GM113 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "expected"), [(2, ["GM113"]), (3, []), (64, [])])
def test_batches_of_two(rows, expected):
    found = train(Net(), rows=rows, steps=40)
    assert [f.code for f in found if f.severity in ("warning", "error")] == expected


def normed(values, samples=4.0, training=1.0, module="bn"):
    extra = {"training": training, "samples": samples, "values": values, "trains": 1.0, "tracked": 1.0, "virgin": 0.0}
    return {"module": module, "what": "batch_norm", "call": 0, "leaf": "0", "extra": extra}


def run_of(rows, curve=FALLING) -> FakeRun:
    made = frames(curve)
    for place, frame in enumerate(made[::50]):
        frame.modules = tuple(rows(place))
    return FakeRun(made, [])


@pytest.mark.parametrize(
    ("values", "samples", "training", "curve", "expected"),
    [
        (2.0, 2.0, 1.0, FALLING, "warning"),
        (2.0, 2.0, 1.0, FLAT, "error"),
        (3.0, 3.0, 1.0, FLAT, None),
        (2.0, 2.0, 0.0, FLAT, None),  # running statistics
        (16.0, 1.0, 1.0, FALLING, "warning"),
        (4096.0, 1.0, 1.0, FALLING, "info"),
        (4096.0, 1.0, 1.0, FLAT, "warning"),
        (4096.0, 2.0, 1.0, FLAT, None),
        (float("nan"), float("nan"), 1.0, FLAT, None),
    ],
)
def test_values_of_each_channel(values, samples, training, curve, expected):
    found = judge(run_of(lambda place: [normed(values, samples, training)], curve), "GM113")
    assert [f.severity for f in found] == ([expected] if expected else [])


def test_a_small_last_batch_is_passed_over():
    assert judge(run_of(lambda place: [normed(2.0 if place % 3 == 2 else 256.0)]), "GM113") == []


def test_the_worst_layer_is_named_first():
    [found] = judge(run_of(lambda place: [normed(2.0, module="b"), normed(1.0, module="a"), normed(64.0)]), "GM113")
    assert found.where == ("a", "b")
