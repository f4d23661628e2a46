"""GM404, GM405, GM406: spikes of the gradient norm, where they begin, and what they do to the loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from diagnosis_frames import FakeRun, Recorder, digits, fact, facts_event, frames, mlp, table, train
from diagnosis_judging import facts_with, judge, severities
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradmedic.diagnosis import diagnose
from gradmedic.diagnosis.bursts import Thresholds, loss_rise

NAMES = ["embed.weight", "first.weight", "second.weight"]
KNOWN = [
    fact("embed.weight", (50, 8), kind="Embedding"),
    fact("first.weight", (8, 8)),
    fact("second.weight", (8, 8)),
]


def run_of(norms, losses, *, updates=None, kind="AdamW", **defaults) -> FakeRun:
    """Three tensors with these gradient norms [steps, 3]; updates of 1e-3 unless given [steps]."""
    norms = np.asarray(norms, dtype=float)
    total = np.sqrt((norms**2).sum(axis=1))
    made = frames([float(loss) for loss in losses], [float(norm) for norm in total])
    updates = np.full(len(norms), 1e-3) if updates is None else updates
    for frame, row, update in zip(made, norms, updates, strict=True):
        frame.tensors = table(
            {"norm": row, "update_norm": np.full(3, update), "weight_norm": np.ones(3), "cosine_prev": np.zeros(3)},
            NAMES,
        )
    return FakeRun(made, [facts_event(facts_with(KNOWN, kind, **defaults))])


def noisy(steps: int = 300, sigma: float = 0.15) -> np.ndarray:
    return np.random.default_rng(0).lognormal(0, sigma, (steps, 3))


def falling(steps: int = 300) -> np.ndarray:
    return 2 * np.exp(-np.arange(steps) / 200) + np.random.default_rng(1).normal(0, 0.02, steps)


def spiked(at, *, hurt: bool, times: float = 50.0):
    norms, losses = noisy(), falling()
    for step in at:
        norms[step] *= times
        if hurt:
            losses[step + 1 : step + 9] += 1.5 * np.exp(-np.arange(8) / 4)
    return norms, losses


def through(at) -> np.ndarray:
    updates = np.full(300, 1e-3)
    updates[list(at)] *= 40
    return updates


def test_spikes_that_cost_loss():
    norms, losses = spiked((120, 180, 240), hurt=True)
    found = judge(run_of(norms, losses, updates=through((120, 180, 240))), "GM404")
    assert [(f.code, f.severity, f.variant, f.step) for f in found] == [("GM404", "warning", "", 120)]
    assert found[0].params["steps"] == ("120", "180")  # said as soon as there were two
    assert "steps 120, 180" in found[0].message
    assert found[0].params["times"] == pytest.approx(50, rel=0.5)
    assert found[0].params["suggested"] == pytest.approx(2 * math.sqrt(3), rel=0.3)


@pytest.mark.parametrize("at", [(120,), ()])
def test_one_spike_or_none_is_not_a_pattern(at):
    norms, losses = spiked(at, hurt=True)
    assert severities(run_of(norms, losses, updates=through(at)), "GM404") == []


@pytest.mark.parametrize("at", [3, 60, 299 - 8])
def test_one_norm_that_is_orders_of_magnitude_above_all_others_is_named(at):
    norms, losses = noisy(), falling()
    norms[at] = 3e16
    (found,) = judge(run_of(norms, losses), "GM404")
    assert (found.severity, found.variant, found.step) == ("info", "lone", at)
    assert found.params["value"] == pytest.approx(3e16 * math.sqrt(3))
    norms[at] = 100.0
    assert judge(run_of(norms, losses), "GM404") == []


def test_a_lone_norm_that_was_skipped_or_stays_is_no_spike():
    norms, losses = noisy(), falling()
    norms[100] = 3e16
    run = run_of(norms, losses)
    run.recorded[100].skipped = True
    assert judge(run, "GM404") == []
    norms[100:] = 3e16
    assert judge(run_of(norms, losses), "GM404") == []


def test_spikes_that_do_no_harm():
    norms, losses = spiked((120, 180, 240), hurt=False)
    assert severities(run_of(norms, losses), "GM404") == []  # tamed by a clip or by Adam: updates as usual
    found = judge(run_of(norms, losses, updates=through((120, 180, 240))), "GM404")
    assert [(f.severity, f.variant) for f in found] == [("info", "note")]


def test_spikes_in_a_run_that_does_not_fall():
    norms, _ = spiked((120, 180, 240), hurt=False)
    flat = 2 + np.random.default_rng(1).normal(0, 0.02, 300)
    found = judge(run_of(norms, flat, updates=through((120, 180, 240))), "GM404")
    assert [(f.severity, f.variant) for f in found] == [("warning", "harm")]


def test_hard_batches_have_a_high_loss_of_their_own():
    norms, losses = spiked((120, 180, 240), hurt=False)
    losses[[120, 180, 240]] += 3
    assert severities(run_of(norms, losses), "GM404") == []


def test_norm_that_stays_up_or_the_first_steps_are_no_spikes():
    norms, losses = noisy(), falling()
    norms[150:] *= 50
    assert severities(run_of(norms, losses), "GM404") == []
    norms, losses = spiked((5, 20, 35), hurt=True)
    assert severities(run_of(norms, losses), "GM404") == []


@given(st.integers(0, 2**31), st.floats(0.01, 0.5))
@settings(deadline=None, max_examples=15)
def test_noise_has_no_spikes(seed, sigma):
    """At most one in 10^11 normal values lies 7 sigma out; small windows and floors must not change that."""
    rng = np.random.default_rng(seed)
    norms = np.exp(rng.normal(0, sigma, (200, 1))) * np.ones(3)
    run = run_of(norms, 2 + rng.normal(0, 0.1, 200), updates=rng.lognormal(-7, 1, 200))
    assert severities(run, "GM404", "GM406") == []


@given(st.lists(st.floats(0.5, 2), min_size=40, max_size=60), st.integers(30, 50))
@settings(deadline=None, max_examples=50)
def test_loss_rise_is_above_all_that_was_usual(losses, at):
    values = np.array(losses)
    before, after, hurt = loss_rise(values, min(at, len(values) - 1), Thresholds())
    if hurt:
        assert after > before * 1.1
        assert after > values[min(at, len(values) - 1)]


# GM406


def led(lead: int, *, hurt: bool = True, other: int | None = None):
    norms, losses = spiked((150,), hurt=hurt)
    norms[150 - lead : 150, 0] *= 20  # 0.05 of what the total will be
    if other is not None:
        norms[150 - other : 150, 1] *= 20
    norms[:, 0] *= 0.05
    return run_of(norms, losses)


@pytest.mark.parametrize("lead", [1, 4, 8])
def test_embedding_that_leads(lead):
    found = judge(led(lead), "GM406")
    assert [(f.code, f.severity, f.where, f.step) for f in found] == [
        ("GM406", "warning", ("embed.weight",), 150 - lead)
    ]
    assert found[0].params["lead"] == lead
    action = found[0].remedies[1].action
    assert action["kind"] == "clip"
    assert action["spec"].startswith('layers({"embed.weight": 0.1')


@pytest.mark.parametrize(
    "run",
    [
        lambda: led(0),
        lambda: led(12),
        lambda: led(4, other=4),
        lambda: led(4, other=6),
        lambda: led(4, hurt=False),
    ],
    ids=["with it", "long before", "beside another", "behind another", "no harm"],
)
def test_embedding_that_does_not_lead(run):
    assert severities(run(), "GM406") == []


def test_embedding_explains_the_spikes():
    norms, losses = spiked((120, 180, 240), hurt=True)
    norms[:, 0] *= 0.05
    for step in (120, 180, 240):
        norms[step - 3 : step, 0] *= 20
    found = judge(run_of(norms, losses, updates=through((120, 180, 240))), "GM404", "GM406")
    assert [(f.code, [g.code for g in f.folded]) for f in found] == [("GM406", ["GM404"])]


# GM405


def outgrown(
    times: float = 8.0, *, hurt: bool = True, own: float = 0.0, kind: str = "AdamW", at: int = 200, beta=0.999
):
    norms, losses = noisy(sigma=0.1), falling()
    norms[at:, 1] *= times
    if hurt:
        losses[at + 2 : at + 9] += 1.0
    losses[at] += own
    return run_of(norms, losses, kind=kind, betas=[0.9, beta])


def test_gradient_that_outgrows_its_second_moment():
    found = judge(outgrown(), "GM405")
    assert [(f.code, f.severity, f.where, f.step) for f in found] == [("GM405", "warning", ("first.weight",), 200)]
    assert found[0].params["steps"] == 1000
    # v is a mean over 201 steps of about 1, and of 64 in the last: 8 / sqrt(1 + 63 / 201 ...) with beta 0.999.
    weight = 0.001 / (1 - 0.999**201)
    assert found[0].params["rms"] == pytest.approx(8 / math.sqrt(1 + 63 * weight), rel=0.25)


@pytest.mark.parametrize(
    "run",
    [
        lambda: outgrown(hurt=False),
        lambda: outgrown(1.8),
        lambda: outgrown(own=3.0),
        lambda: outgrown(kind="SGD"),
        lambda: outgrown(at=30),
        lambda: outgrown(beta=0.5),
    ],
    ids=["no harm", "small", "the batch was hard", "no second moment", "early", "short memory"],
)
def test_gradient_that_does_not(run):
    assert severities(run(), "GM405") == []


def test_clip_that_takes_the_jump_away():
    run = outgrown()
    for frame in run.recorded[200:]:
        frame.clip_scale, frame.clipped = 1 / 8, True
    assert severities(run, "GM405") == []


def other_data(*, comes_back: bool) -> FakeRun:
    """A loss that is next to nothing; at step 200 harder data come, and the first long step on them overshoots."""
    norms, noise = noisy(sigma=0.1), np.random.default_rng(2)
    losses = np.concatenate([0.01 * np.exp(-np.arange(200) / 20), np.full(100, 0.003)]) * noise.lognormal(0, 0.2, 300)
    norms[200:, 1] *= 8
    losses[201:212] *= 5
    if not comes_back:
        losses[212:] *= 5
    return run_of(norms, losses, betas=[0.9, 0.999])


@pytest.mark.parametrize(("comes_back", "said"), [(True, "info"), (False, "warning")])
def test_other_data_are_judged_by_their_own_first_loss(comes_back, said):
    """What is lost of what was learned of the former data says nothing: it may all be of no use for the new ones."""
    assert severities(other_data(comes_back=comes_back), "GM405") == [("GM405", said)]


def test_adamw_after_a_phase_of_tiny_gradients():
    """After 120 steps at a thousandth of the loss, v is 120 times nothing and once g^2: RMS is sqrt(121)."""
    model = mlp(3)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, betas=(0.5, 0.9999))
    draw = digits()
    recorder = Recorder(model, optimizer)
    for step in range(135):
        x, y = draw(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        (loss * (1e-3 if step < 120 else 1.0)).backward()
        recorder.step(loss)
    found = judge(recorder.run, "GM405")
    assert [(f.code, f.step) for f in found] == [("GM405", 120)]
    assert found[0].params["rms"] == pytest.approx(11, abs=0.1)


# Healthy


def test_heavy_tailed_regression_in_good_health():
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    generator = torch.Generator().manual_seed(0)

    def batch(_step):
        x = torch.randn(32, 8, generator=generator)
        noise = torch.randn(32, 1, generator=generator) / torch.randn(32, 1, generator=generator)  # Cauchy
        return x, x[:, :1] + 0.1 * noise

    for criterion in (nn.functional.huber_loss, nn.functional.l1_loss):
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        run = train(model, optimizer, batch, 200, criterion=criterion)
        assert [f for f in diagnose(run) if f.severity != "info"] == []
