"""GM112, GM410, GM411: what shows in step times, in two losses, and in what the script logs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from diagnosis_frames import FakeRun, Recorder, frames
from diagnosis_judging import judge, severities
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradmedic.diagnosis.rules.graph_leak import trend
from gradmedic.diagnosis.rules.overfit import Overfit

# GM112


def timed(seconds, **common) -> FakeRun:
    return FakeRun(frames([1.0] * len(seconds), step_seconds=[float(s) for s in seconds], **common))


def noise(steps: int, size: float = 0.1, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(0, size, steps)


STEPS = np.arange(150)


def test_steps_that_take_ever_longer():
    found = judge(timed(0.02 * (1 + 0.03 * STEPS) * noise(150)), "GM112")
    assert [(f.code, f.severity) for f in found] == [("GM112", "warning")]
    assert found[0].step < 20
    assert 1 < found[0].params["percent"] < 4
    assert found[0].params["now"] > 1.5 * found[0].params["before"]


@pytest.mark.parametrize(
    "run",
    [
        lambda: timed(0.02 * noise(150, 0.5)),
        lambda: timed(0.02 * noise(150) * (1 + 3 * (STEPS >= 60))),
        lambda: timed(0.02 * noise(150) * (1 + (STEPS >= 50) + (STEPS >= 100))),
        lambda: timed(0.02 * noise(150) * (1 + 50 * (STEPS % 10 == 9))),
        lambda: timed(0.02 * noise(150) * (1 + 20 * (STEPS < 4))),
        lambda: timed(0.02 * (1 + 0.002 * STEPS) * noise(150)),
        lambda: timed(1e-5 * (1 + 0.03 * STEPS)),
        lambda: timed(0.02 * (1 + STEPS // 10), micro_batches=[int(1 + s // 10) for s in STEPS]),
        lambda: timed(0.02 + 0.001 * STEPS, overhead_seconds=[0.001 * float(s) for s in STEPS]),
        lambda: timed((0.02 * (1 + 0.03 * STEPS))[:70]),
    ],
    ids=[
        "noise",
        "a jump",
        "two jumps",
        "checkpoints",
        "compilation at first",
        "slow drift",
        "microseconds",
        "more micro-batches",
        "gradmedic's own",
        "not for long",
    ],
)
def test_times_that_are_no_leak(run):
    assert severities(run(), "GM112") == []


def sampled(**row) -> list:
    return [({"module": "", "leaf": ""} | row,) if step % 50 == 0 else () for step in range(150)]


def test_a_machine_that_becomes_slower_is_no_leak_where_graphs_were_looked_at():
    slower = 0.02 * (1 + 0.03 * STEPS) * noise(150)
    assert severities(timed(slower, modules=sampled(what="loss")), "GM112") == []
    standing = sampled(what="graph", extra={"nodes": 40.0, "carried": 8.0})
    assert severities(timed(slower, modules=standing), "GM112") == []
    assert severities(timed(slower, modules=sampled(what="output")), "GM112") == [("GM112", "warning")]


@given(st.floats(-0.005, 0.05), st.floats(1e-3, 10))
@settings(deadline=None, max_examples=50)
def test_trend_of_a_line(slope, base):
    values = base * (1 + slope * np.arange(60))
    found, rising = trend(values)
    middle = 1 + slope * 4.5
    assert found == pytest.approx(slope / middle, abs=1e-9)
    assert rising == (1.0 if slope > 1e-12 else 0.0) or abs(slope) <= 1e-12


def test_running_loss_that_keeps_its_graph():
    """The time of a step is that of walking the graph of all steps before; counted in nodes, not measured."""
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    recorder = Recorder(model, optimizer)
    total = torch.zeros(())
    for _ in range(100):
        optimizer.zero_grad()
        total = total + model(torch.randn(8, 4)).mean()
        total.backward(retain_graph=True)
        recorder.step(total, step_seconds=1e-3 * walked(total.grad_fn))
    assert severities(recorder.run, "GM112") == [("GM112", "warning")]


def walked(node) -> int:
    """The number of nodes that backward visits."""
    seen, waiting = set(), [node]
    while waiting:
        current = waiting.pop()
        if current is not None and current not in seen:
            seen.add(current)
            waiting.extend(following for following, _ in current.next_functions)
    return len(seen)


# GM410


def two(first_losses, second_losses, second_norms) -> FakeRun:
    """Two optimizers in turn: D and G."""
    d = frames([float(x) for x in first_losses], optimizer="D")
    g = frames([float(x) for x in second_losses], [float(x) for x in second_norms], optimizer="G")
    merged = [frame for pair in zip(d, g, strict=True) for frame in pair]
    for at, frame in enumerate(merged):
        frame.time = float(at)
    return FakeRun(merged)


N = 200
WON = np.concatenate([np.linspace(1.39, 0.02, 100), np.full(100, 0.01)])
SATURATED = -WON / 2
COLLAPSED = np.concatenate([np.ones(80), np.geomspace(1, 1e-4, 120)]) * noise(N, 0.1)


def test_discriminator_that_has_won():
    found = judge(two(WON, SATURATED, COLLAPSED), "GM410")
    assert [(f.code, f.severity, f.variant, f.optimizer) for f in found] == [("GM410", "warning", "", "G")]
    assert found[0].params["winner"] == "D"
    assert "non-saturating" in found[0].remedies[0].text


def test_generator_that_is_thrown_about():
    found = judge(two(WON, 1 / (WON + 0.1), 1 / COLLAPSED), "GM410")
    assert [(f.severity, f.variant) for f in found] == [("warning", "exploded")]
    assert "non-saturating" not in found[0].remedies[0].text


@pytest.mark.parametrize(
    "run",
    [
        lambda: two(WON + 0.5, SATURATED, COLLAPSED),
        lambda: two(WON - 0.1, SATURATED, COLLAPSED),
        lambda: two(WON, SATURATED, noise(N, 0.3)),
        lambda: two(WON, -SATURATED, COLLAPSED),
        lambda: two(np.full(N, 0.01), SATURATED, COLLAPSED),
        lambda: two(1.39 + 0.5 * np.sin(np.arange(N) / 5), 0.7 - 0.5 * np.sin(np.arange(N) / 5), noise(N, 0.5)),
    ],
    ids=["not won", "a critic", "norms as before", "both converge", "was so from the start", "oscillation"],
)
def test_players_in_balance(run):
    assert severities(run(), "GM410") == []


def gan(saturating: bool, lr_d: float, steps: int = 300) -> FakeRun:
    g = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    d = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    og, od = torch.optim.Adam(g.parameters(), 1e-3, betas=(0.5, 0.9)), torch.optim.Adam(d.parameters(), lr_d)
    recorder = Recorder({"G": g, "D": d}, {"og": og, "od": od})
    bce = nn.functional.binary_cross_entropy_with_logits
    for _ in range(steps):
        angle = 2 * math.pi * torch.rand(64, 1)
        real = 4 * torch.cat([angle.cos(), angle.sin()], 1)
        od.zero_grad()
        fake = g(torch.randn(64, 4))
        loss = bce(d(real), torch.ones(64, 1)) + bce(d(fake.detach()), torch.zeros(64, 1))
        loss.backward()
        recorder.step(loss, "od")
        og.zero_grad()
        loss = -bce(d(fake), torch.zeros(64, 1)) if saturating else bce(d(fake), torch.ones(64, 1))
        loss.backward()
        recorder.step(loss, "og")
    return recorder.run


@pytest.mark.parametrize(("saturating", "lr_d", "said"), [(True, 5e-2, True), (False, 1e-3, False)])
def test_ring_of_a_gan(saturating, lr_d, said):
    assert [f.code for f in judge(gan(saturating, lr_d), "GM410")] == (["GM410"] if said else [])


# GM411


def logged(values, train, *, key="val_loss", every=20) -> FakeRun:
    """A validation loss every so many steps, beside a training loss [evaluations] that holds until the next."""
    made = frames([float(t) for t in np.repeat(train, every)])
    for at, value in enumerate(values):
        made[at * every + every - 1].logged = {key: float(value)}
    return FakeRun(made)


DOWN_AND_UP = [2.0, 1.5, 1.2, 1.0, 1.05, 1.1, 1.2, 1.3]
TRAIN = np.linspace(2.0, 0.2, 8)


@pytest.mark.parametrize(
    "key", ["val_loss", "valid/loss", "eval/loss", "validationLoss", "loss/val", "test_nll", "val.ppl"]
)
def test_validation_loss_that_rises(key):
    found = judge(logged(DOWN_AND_UP, TRAIN, key=key), "GM411")
    assert [(f.code, f.severity, f.step) for f in found] == [("GM411", "warning", 79)]
    assert (found[0].params["best"], found[0].params["now"], found[0].params["rising"]) == (1.0, 1.2, 3)
    assert key in found[0].message


@pytest.mark.parametrize(
    "key", ["value_loss", "val_acc", "interval", "latest_loss", "train_loss", "device_loss", "valve"]
)
def test_other_names(key):
    assert severities(logged(DOWN_AND_UP, TRAIN, key=key), "GM411") == []


@pytest.mark.parametrize(
    "run",
    [
        lambda: logged([2.0, 1.5, 1.2, 1.0, 1.01, 1.03, 1.05, 1.08], TRAIN),
        lambda: logged([2.0, 1.5, 1.0, 1.2, 1.1, 1.3, 1.15, 1.4], TRAIN),
        lambda: logged(DOWN_AND_UP, [2.0, 1.5, 1.2, 1.0, 1.3, 1.6, 2.0, 3.0]),
        lambda: logged([2.0, 1.5, 1.2, 1.0, 0.9, 0.8, 0.7, 1.0], TRAIN),
        lambda: logged([2.0, 1.5, 1.2, 1.0, math.nan, math.inf, math.nan, math.nan], TRAIN),
    ],
    ids=["by a few percent", "up and down", "the training loss rises too", "one bad evaluation", "not finite"],
)
def test_validation_loss_in_good_health(run):
    assert severities(run(), "GM411") == []


def test_validation_batch_at_every_step_is_averaged():
    rng = np.random.default_rng(0)
    assert severities(logged(1 + 0.3 * rng.random(400), np.linspace(2, 0.5, 400), every=1), "GM411") == []


def test_last_evaluation_logged_again_with_every_step_counts_once():
    run = logged(DOWN_AND_UP[:6], TRAIN[:6])
    last = {}
    for frame in run.recorded:
        last = frame.logged or last
        frame.logged = dict(last)
    assert severities(run, "GM411") == []  # two evaluations up, however often they are repeated


def test_numbers_that_come_after_the_step():
    """`monitor.log` adds to the last frame while the next step has not been made."""
    from gradmedic.diagnosis import Engine

    run = logged(DOWN_AND_UP, TRAIN)
    engine = Engine(rules=[Overfit()], strict=True)
    for frame in run.recorded:
        late, frame.logged = frame.logged, {}
        engine.on_frame(frame)
        frame.logged = late
    engine.finish()
    assert [f.step for f in engine.findings()] == [79]
