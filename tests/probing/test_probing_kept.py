"""An unmodified loop is probed with its own batch, through a loss that was seen in its graph."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gradmedic.muting import is_muted, muted
from gradmedic.probes.loss_graph import find_losses
from gradmedic.probing.kept import StepProbe
from gradmedic.probing.recipe import recipe_of
from gradmedic.report.probe_line import _SAID, probe_line
from gradmedic.watching import watch_process

Y = torch.arange(12) % 4
LOSSES = {
    "cross entropy": lambda z: F.cross_entropy(z, Y),
    "sum": lambda z: F.cross_entropy(z, Y, reduction="sum"),
    "minus": lambda z: -F.cross_entropy(z, Y),
    "nll": lambda z: F.nll_loss(z.log_softmax(1), Y),
    "by hand": lambda z: -z.log_softmax(1).gather(1, Y[:, None]).mean(),
    "squared error": lambda z: F.mse_loss(z, F.one_hot(Y, 4).float()),
    "binary": lambda z: F.binary_cross_entropy_with_logits(z, F.one_hot(Y, 4).float()),
}


@pytest.mark.parametrize("name", LOSSES)
def test_recipes_give_the_loss_again(name):
    """The recipe is held against the function itself, at another output than the one it was found with."""
    torch.manual_seed(0)
    model, x = nn.Linear(5, 4), torch.randn(12, 5)
    output = model(x)
    root = LOSSES[name](output)
    [call] = find_losses([root])
    recipe, target = recipe_of(call, {"logits": output}, root, 12)
    assert recipe.sign == (-1 if name == "minus" else 1)
    other = torch.randn(12, 4)
    again = recipe.loss({"logits": other}, target)
    assert float(again) == pytest.approx(recipe.sign * LOSSES[name](other).item(), rel=1e-5)


def test_a_loss_of_its_own_way_has_no_recipe():
    output = nn.Linear(5, 4)(torch.randn(12, 5))
    root = F.cross_entropy(output * 3, Y) + output.square().mean()
    assert recipe_of(find_losses([root])[0], output, root, 12) is None


@pytest.mark.parametrize("layout", ["rows", "second", "shifted"])
def test_sequences_in_every_layout(layout):
    ids = torch.randint(0, 9, (3, 8))
    output = nn.Embedding(9, 9)(ids)
    target = torch.randint(0, 9, (3, 8))
    root = {
        "rows": lambda: F.cross_entropy(output.reshape(-1, 9), target.reshape(-1)),
        "second": lambda: F.cross_entropy(output.transpose(1, 2), target),
        "shifted": lambda: F.cross_entropy(output[:, :-1].reshape(-1, 9), target[:, 1:].reshape(-1)),
    }[layout]()
    [call] = find_losses([root])
    recipe, wanted = recipe_of(call, output, root, 3)
    assert wanted.shape == ((3, 7) if layout == "shifted" else (3, 8))
    assert recipe.loss(output, wanted).item() == pytest.approx(root.item(), rel=1e-6)


def script(loss, steps: int = 6, rewrite: bool = False):
    """A loop as a script has it; returns its probe events, and the sum of its weights."""
    torch.manual_seed(0)
    monitor = watch_process(record=None, strict=True)
    probe = StepProbe(monitor)
    probe.start()
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(steps):
        x = torch.randn(12, 5)
        optimizer.zero_grad()
        loss(model(x)).backward()
        if rewrite:
            x.zero_()
        optimizer.step()
    with torch.no_grad():
        model.eval()(x)
    probe.finish()
    monitor.close()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    events = [event for event in monitor.run.events if event["kind"] == "probe"]
    return {(event["step"], event["probe"]): event["verdict"] for event in events}, events, model


def test_the_second_and_the_last_step_are_probed():
    verdicts, events, model = script(LOSSES["cross entropy"])
    assert [key for key in verdicts if key[0] == 1] == [(1, "line"), (1, "batch"), (1, "input"), (1, "future")]
    assert [key for key in verdicts if key[0] == 5] == [(5, "line"), (5, "input"), (5, "overfit")]
    assert verdicts[5, "line"] == "descends"
    assert not model.training
    assert probe_line(events, "en").startswith("probes: the step lowers its batch's loss from ")


def test_a_negated_loss_is_seen_through():
    assert script(LOSSES["minus"])[0][1, "line"] == "ascends"


def test_what_cannot_be_probed_is_said():
    _, events, _ = script(lambda z: (z * F.one_hot(Y, 4)).exp().mean())
    assert [(event["probe"], event["verdict"]) for event in events] == [("all", "needs")]
    assert "one known loss" in probe_line(events, "en")
    _, events, _ = script(LOSSES["cross entropy"], rewrite=True)
    assert "not written to" in events[-1]["reason"]
    _, events, _ = script(LOSSES["cross entropy"], steps=1)
    assert events[-1]["reason"] == "a second step"


def test_a_loss_without_a_value_is_no_finding_of_a_probe():
    """What each probe would say of it is empty words; it is said once that there is nothing to probe."""
    _, made, _ = script(LOSSES["cross entropy"])
    events = [
        {**event, "numbers": dict.fromkeys(event["numbers"], math.nan)}
        for event in made
        if "future" not in event["probe"]
    ]
    assert {event["probe"] for event in events} >= {"line", "batch", "input"}
    assert probe_line(events, "en") == "probes: not possible: the loss is NaN"
    assert probe_line(events, "zh") == "探测: 无法进行：损失为 NaN"
    last = {"kind": "probe", "probe": "overfit", "verdict": "fits", "numbers": {"loss": 2.0, "loss_fitted": 0.1}}
    said, rest = probe_line([*events, last], "en").split("; ")
    assert said == "probes: 16 samples can be learned by heart (loss 2 to 0.1)"
    assert rest == "the other probes were not possible: the loss is NaN"


def test_muted_is_nested_and_ends():
    assert not is_muted()
    with muted():
        with muted():
            pass
        assert is_muted()
    assert not is_muted()


def test_both_languages_say_the_same():
    assert _SAID["en"].keys() == _SAID["zh"].keys()
    assert probe_line([], "zh") == ""
