"""GM510 where targets are soft: pixels between 0 and 1, whose entropy no prediction gets below."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from diagnosis_frames import FakeRun, fact, facts_event, frames, table
from diagnosis_judging import judge
from sklearn.datasets import load_digits
from torch import nn

import gradmedic as gm
from gradmedic.diagnosis.module_rows import SampledRow
from gradmedic.diagnosis.soft_targets import gain_in_reach, has_gained, still_gains
from gradmedic.facts import Facts

PIXELS = torch.tensor(load_digits().data / 16).float()


def row(loss: float, step: int = 0, **numbers: float) -> SampledRow:
    numbers = {"loss": loss, "baseline": 0.42, "floor": 0.22} | numbers
    return SampledRow(step, {"what": "loss", "module": "out", "extra": numbers})


def test_what_can_be_gained_lies_between_the_constant_and_the_floor():
    assert gain_in_reach([row(0.4)]) == pytest.approx(0.2)
    assert gain_in_reach([row(0.4, floor=0.0)]) is None  # labels, yes or no
    assert gain_in_reach([row(0.4, floor=float("nan"))]) is None


@pytest.mark.parametrize(
    ("losses", "falls", "gained"),
    [
        ([0.47, 0.44, 0.43], True, False),  # from above
        ([0.43, 0.415, 0.405], True, False),  # beyond it, within the scatter still
        ([0.40, 0.405, 0.40], True, True),
        ([0.425, 0.415, 0.42], False, False),  # at rest
        ([0.45, 0.39, 0.42], True, False),
        ([0.40], True, False),
    ],
)
def test_a_loss_that_goes_on_below_the_constant(losses, falls, gained):
    series = [row(loss) for loss in losses]
    assert (still_gains(series, 3), has_gained(series)) == (falls, gained)
    hard = [row(loss, floor=0.0) for loss in losses]
    assert not still_gains(hard, 3)
    assert not has_gained(hard)


class Coder(nn.Module):
    """A variational autoencoder, or a deterministic one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.code = nn.Linear(64, 128), nn.Linear(128, 16)
        self.back, self.out = nn.Linear(8, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        mean, log_var = self.code(F.relu(self.first(x))).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_var / 2).exp()
        return self.out(F.relu(self.back(z))), mean, log_var


def findings(*, shuffled: bool, kl: float, steps: int, every: int = 50, lr: float = 1e-3) -> list[gm.Finding]:
    model = Coder()
    optimizer = torch.optim.Adam(model.parameters(), lr)
    with gm.watch(model, optimizer, strict=True, modules_every=every, rules=("GM510",)) as monitor:
        for _ in range(steps):
            x = PIXELS[torch.randint(len(PIXELS), (64,))]
            target = x[torch.randperm(len(x))] if shuffled else x
            given, mean, log_var = model(x)
            loss = F.binary_cross_entropy_with_logits(given, target, reduction="sum") / len(x)
            loss = loss - kl / 2 * (1 + log_var - mean**2 - log_var.exp()).sum(1).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return monitor.findings


@pytest.mark.parametrize("lr", [1e-3, 5e-4])
def test_a_variational_autoencoder_that_learns_is_quiet(lr):
    assert findings(shuffled=False, kl=1.0, steps=170, lr=lr) == []


def test_targets_of_other_inputs_are_found_in_words_for_targets():
    [found] = findings(shuffled=True, kl=0.0, steps=400, every=40)
    assert (found.variant, found.severity) == ("targets", "warning")
    assert "labels" not in found.message
    assert found.params["loss_step"] >= 360  # the latest sample, at the end
    assert "target is the input itself" in found.remedies[0].text


def soft_run(losses: list[float], floor: float) -> FakeRun:
    made = frames([0.5] * (50 * len(losses)))
    for frame in made:
        frame.tensors = table({"update_norm": [2e-3], "weight_norm": [1.0], "cosine_prev": [0.0]}, ["out.weight"])
    for frame, loss in zip(made[::50], losses, strict=True):
        extra = {"loss": loss, "baseline": 0.42, "classes": 2.0, "labels_seen": 1e6, "row_spread": 1.0, "floor": floor}
        frame.modules = ({"module": "out", "what": "loss", "call": 0, "leaf": "bce_with_logits", "extra": extra},)
    return FakeRun(made, [facts_event(Facts(parameters={"out.weight": fact("out.weight", (64, 64))}))])


def test_it_is_taken_back_when_the_loss_beats_the_constant_by_more_than_scatter():
    at_rest = [0.7, 0.421, 0.42, 0.422, 0.421, 0.42]
    [found] = judge(soft_run(at_rest, 0.21), "GM510")
    assert (found.variant, found.params["loss"], found.params["loss_step"]) == ("targets", 0.42, 250)
    assert judge(soft_run([*at_rest, 0.40, 0.39, 0.385, 0.38], 0.21), "GM510") == []
    [kept] = judge(soft_run([*at_rest, 0.40, 0.39, 0.385, 0.38], 0.0), "GM510")  # labels learned by heart
    assert kept.variant == ""
