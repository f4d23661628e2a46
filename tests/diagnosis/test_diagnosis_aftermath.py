"""What is seen of a run after it has become NaN, of weights decayed to zero, and of slow starts, is no fault."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from diagnosis_frames import FakeRun, digits, frames, mlp
from diagnosis_judging import judge
from torch import nn

import gradmedic as gm
from gradmedic.diagnosis.finding import Finding
from gradmedic.diagnosis.suppression import fold

NAN = float("nan")


def finding(code: str, step: int = 0, variant: str = "", severity: Any = "warning") -> Finding:
    return Finding(code, code, severity, 0.9, step, variant=variant)


def sampled(curve: list[float], rows: Any, every: int = 20, optimizer: str = "SGD") -> list[Any]:
    made = frames(curve, optimizer=optimizer)
    for frame in made[::every]:
        frame.modules = tuple(rows(frame.step))
    return made


def row(kind: str, module: str = "head", what: str = "loss", **extra: float) -> dict[str, Any]:
    return {"module": module, "what": what, "call": 0, "leaf": kind, "extra": extra}


# -- NaN --------------------------------------------------------------------------------------------------------------


def test_units_of_nan_weights_are_not_called_dead():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, draw = mlp(3), digits()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with gm.watch(model, optimizer, strict=True, modules_every=5) as monitor:
        for step in range(60):
            x, y = draw(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            (loss + (x.sum() * 0).sqrt() * (loss / 0 if step == 20 else 0)).backward()
            optimizer.step()
    found = monitor.diagnose()
    assert [each.code for each in found if each.severity != "info"] == ["GM201"]
    assert "GM303" not in {each.code for each in found[0].folded}


class Spoil(torch.autograd.Function):
    """Passes values on; what goes back has a row of the given value."""

    @staticmethod
    def forward(ctx, x, value):
        ctx.value = value
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        grad[0] = ctx.value
        return grad, None


def spoilt_training(value: float, clip: bool, **settings: Any) -> tuple[gm.Monitor, Finding, nn.Module]:
    """Four steps; in the last the gradient of the hidden layer is spoilt, and that of the head is not."""
    torch.manual_seed(0)
    hidden, head = nn.Linear(8, 16), nn.Linear(16, 4)
    model = nn.Sequential(hidden, head)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gm.watch(model, optimizer, strict=True, **settings) as monitor:
        for step in range(4):
            optimizer.zero_grad()
            made = hidden(torch.randn(5, 8))
            loss = head(Spoil.apply(made, value) if step == 3 else made).square().mean()
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return monitor, next(each for each in monitor.diagnose() if each.code == "GM201"), head


def test_a_nan_that_the_scripts_own_clip_spread_is_said_to_be():
    """Without the clip the head would have kept its weights: what torch does with a NaN norm is seen in them."""
    _, alone, head = spoilt_training(NAN, clip=False)
    assert torch.isfinite(head.weight).all()
    assert "clip" not in alone.message
    monitor, spread, head = spoilt_training(NAN, clip=True)
    assert head.weight.isnan().all()
    assert spread.where == alone.where == ("0.bias", "0.weight")
    assert "The script's own clip then spread it" in spread.message
    assert "2 tensors with finite gradients" in spread.message
    assert "error_if_nonfinite=True" in " ".join(remedy.text for remedy in spread.remedies)
    assert "error_if_nonfinite" in gm.diagnose(monitor.run, lang="zh")[0].message


def test_an_infinite_norm_spreads_nothing_and_our_own_clip_neither():
    _, infinite, head = spoilt_training(float("inf"), clip=True)
    assert torch.isfinite(head.weight).all()
    assert "spread" not in infinite.message
    _, ours, head = spoilt_training(NAN, clip=False, transform=gm.clip.norm(1.0))
    assert torch.isfinite(head.weight).all()
    assert "spread" not in ours.message


@pytest.mark.parametrize(
    ("curve", "expected"),
    [([1.0] * 200, ["GM303"]), ([1.0] * 60 + [NAN] * 140, []), ([1.0] * 60 + [NAN] + [1.0] * 139, ["GM303"])],
)
def test_rows_of_steps_that_are_nan_are_left_out(curve, expected):
    def rows(step: int) -> list[dict[str, Any]]:
        dead = 8.0 if step > 60 else 0.0
        units = {"units": 8.0, "inactive_units": dead, "inactive_now": dead, "batches": 9.0, "samples": 64.0}
        return [row("Relu", "act", "activation", **units)]

    assert [each.code for each in judge(FakeRun(sampled(curve, rows)), "GM303")] == expected


@pytest.mark.parametrize(
    ("nonfinite", "effect", "folded"),
    [
        (finding("GM201", 20, severity="critical"), finding("GM303", 200), True),
        (finding("GM201", 20, severity="critical"), finding("GM303", 10), False),
        (finding("GM201", 20, severity="error"), finding("GM303", 40), True),  # the scaler skipped it
        (finding("GM201", 20, severity="error"), finding("GM303", 400), False),
        (finding("GM201", 20, severity="critical"), finding("GM113", 200), False),  # a contract
    ],
)
def test_what_comes_after_a_nan(nonfinite, effect, folded):
    assert len(fold([nonfinite, effect])) == (1 if folded else 2)


# -- weights decayed to zero, dead units ------------------------------------------------------------------------------


@pytest.mark.parametrize("effect", ["GM203", "GM206", "GM303", "GM515"])
def test_decayed_weights_pass_on_nothing(effect):
    assert [each.code for each in fold([finding("GM407"), finding(effect, 70)])] == ["GM407"]


def test_inputs_that_are_all_the_same_are_no_consequence_of_decay():
    assert len(fold([finding("GM407"), finding("GM514", 10)])) == 2
    assert len(fold([finding("GM407"), finding("GM514", 10, "prediction")])) == 1


def test_a_broadcast_loss_follows_from_nothing():
    listed = fold([finding("GM514", variant="prediction"), finding("GM515", 0, "broadcast", "error")])
    assert [each.code for each in listed] == ["GM515"]


# -- first rows without a name ----------------------------------------------------------------------------------------


def by_class(step: int) -> list[dict[str, Any]]:
    numbers = {"label_entropy": 0.3, "count": 64.0, "baseline": 0.8, "classes_seen": 3.0, "labels_seen": 300.0}
    return [row("cross_entropy", "head" if step else "", **numbers)]


def test_the_first_loss_of_an_unmodified_script_is_the_same_loss():
    [found] = judge(FakeRun(sampled([1.0 - i / 500 for i in range(200)], by_class)), "GM511")
    assert (found.severity, found.step) == ("warning", 0)


def test_pixels_of_one_image_belong_together():
    images = row("values", "", "batch", rows=4.0, count=4096.0)
    run = FakeRun(sampled([1.0 - i / 500 for i in range(200)], lambda step: [*by_class(step), images]))
    assert [each.severity for each in judge(run, "GM511")] == ["info"]


# -- adversaries ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("of_batch", "expected"), [(0.0, []), (0.6, ["GM509"]), (NAN, ["GM509"])])
def test_batches_of_one_label_each(of_batch, expected):
    numbers = {"loss": 0.7, "baseline": 0.69, "top_share": 1.0, "labels_seen": 999.0, "label_entropy": of_batch}
    run = FakeRun(sampled([0.7] * 300, lambda _step: [row("bce_with_logits", **numbers)]))
    assert [each.code for each in judge(run, "GM509")] == expected


def test_a_gan_with_separate_passes_for_real_and_generated_samples():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    maker = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    critic = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
    first, second = (torch.optim.Adam(each.parameters(), 1e-4) for each in (maker, critic))
    bce = nn.BCEWithLogitsLoss()
    with gm.watch({"maker": maker, "critic": critic}, [first, second], strict=True, modules_every=20) as monitor:
        for _ in range(160):
            second.zero_grad()
            fake = maker(torch.randn(64, 4))
            bce(critic(torch.randn(64, 2) * 0.1), torch.ones(64, 1)).backward()
            bce(critic(fake.detach()), torch.zeros(64, 1)).backward()
            second.step()
            first.zero_grad()
            bce(critic(fake), torch.ones(64, 1)).backward()
            first.step()
    assert [each.code for each in monitor.diagnose() if each.severity != "info"] == []


# -- slow starts ------------------------------------------------------------------------------------------------------


def regression(spread: Any, loss: Any = lambda _step: 1.0) -> Any:
    def rows(step: int) -> list[dict[str, Any]]:
        numbers = {"baseline": 1.0, "rows": 64.0, "target_spread": 1.0, "prediction_spread": spread(step)}
        return [row("mse", loss=loss(step), **numbers)]

    return rows


def test_predictions_that_come_apart_are_a_slow_start():
    curve = [1.0] * 180
    assert judge(FakeRun(sampled(curve, regression(lambda step: 1e-5 * 2 ** (step / 20)))), "GM515") == []
    assert len(judge(FakeRun(sampled(curve, regression(lambda _step: 1e-3))), "GM515")) == 1


def test_the_losses_of_steps_take_it_back_before_samples_do():
    curve = [1.0] * 150 + [0.1] * 40  # one sample, at step 160, sees it
    known = regression(lambda _step: 1e-3, lambda step: curve[step])
    assert judge(FakeRun(sampled(curve, known)), "GM515") == []
    other = regression(lambda _step: 1e-3, lambda step: 2 * curve[step] if step < 160 else 1.0)  # one term of several
    assert len(judge(FakeRun(sampled(curve, other)), "GM515")) == 1
