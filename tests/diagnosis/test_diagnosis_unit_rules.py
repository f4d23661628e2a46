"""GM303, GM304, GM310 to GM312: dead and saturated units, attention, output logits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from diagnosis_frames import FakeRun, digits, frames, mlp
from graph_trainings import train_probed
from torch import nn

from gradmedic.diagnosis import diagnose

FALLING = [2.0 - i / 1000 for i in range(600)]
FLAT = [2.0] * 600


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def alarms(found):
    return {f.code for f in found if f.severity != "info"}


def run_of(rows, curve=FALLING, every=20) -> FakeRun:
    """A run whose sampled steps have these rows; `rows` is a function of the sample's place."""
    made = frames(curve)
    for frame in made[::every]:
        frame.modules = tuple(rows(frame.step // every))
    return FakeRun(made, [])


def layer(inactive, module="fc1", what="activation", batches=None, now=None, **more):
    row = {"module": module, "what": what, "call": 0, "leaf": "Relu", "units": 100.0, "inactive_units": float(inactive)}
    row |= {"batches": batches, "extra": {"samples": 256.0, "inactive_now": float(inactive if now is None else now)}}
    return row | more


# -- GM303 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("inactive", "curve", "expected"),
    [
        (30, FLAT, None),  # wide networks live with that
        (60, FALLING, "info"),
        (60, FLAT, "warning"),
        (97, FALLING, "warning"),
        (97, FLAT, "error"),
        (100, FALLING, "error"),
    ],
)
def test_share_of_dead_units(inactive, curve, expected):
    found = diagnose(run_of(lambda k: [layer(inactive, batches=min(k + 1.0, 20))], curve))
    assert [(f.code, f.severity) for f in found] == ([("GM303", expected)] if expected else [])


def test_units_must_be_dead_for_many_samples():
    """Half of the activations of one batch are zero in any network."""
    few = run_of(lambda k: [layer(60, batches=k + 1.0)], FLAT[:200])
    assert diagnose(few) == []
    small = run_of(
        lambda k: [layer(60, batches=min(k + 1.0, 20)) | {"extra": {"samples": 4.0, "inactive_now": 60.0}}], FLAT
    )
    assert diagnose(small) == []


def test_a_layer_that_dies_late_is_seen_within_three_samples():
    """F09: units that were active before the step that killed them are still in the counts."""
    run = run_of(lambda k: [layer(0, batches=min(k + 1.0, 20), now=100 if k >= 5 else 0)], FALLING[:200])
    [found] = diagnose(run)
    assert (found.code, found.variant, found.step) == ("GM303", "whole", 100)


RISING = [2.0 - i / 200 + 0.1 * (-1) ** i for i in range(220)] + [0.9 + i / 600 + 0.1 * (-1) ** i for i in range(320)]


@pytest.mark.parametrize(
    ("curve", "now", "samples", "expected"),
    [
        (RISING, lambda k: 84, 32.0, "warning"),
        (FALLING, lambda k: 84, 32.0, None),
        (RISING, lambda k: 60, 32.0, None),
        (RISING, lambda k: 84 if k % 3 else 70, 32.0, None),
        (RISING, lambda k: 84, 4.0, None),
    ],
)
def test_units_that_died_while_the_counts_still_remember_them_alive(curve, now, samples, expected):
    """A short run is over before the counts forget; the same share dead in ten batches in a row is no chance."""

    def row(k):
        dead = now(k) if k >= 3 else 10
        return layer(0, batches=k + 1.0) | {"extra": {"samples": samples, "inactive_now": float(dead)}}

    found = [f for f in diagnose(run_of(lambda k: [row(k)], curve, every=35)) if f.code == "GM303"]
    assert [(f.variant, f.severity) for f in found] == ([("late", expected)] if expected else [])
    if found:
        assert "84 percent" in found[0].message
        assert "the loss goes up again" in found[0].message
        assert len(found[0].remedies) == 3


@pytest.mark.parametrize(
    ("first", "share", "variant"), [(100, 100, "born_whole"), (40, 100, "whole"), (70, 70, "born"), (40, 70, "")]
)
def test_dead_before_the_first_update(first, share, variant):
    """A bias far below zero is no matter of the learning rate."""
    run = run_of(lambda k: [layer(share, batches=min(k + 1.0, 20), now=share if k else first)], FLAT)
    [found] = diagnose(run)
    assert (found.code, found.variant) == ("GM303", variant)
    assert (found.step == 0) == variant.startswith("born")


@pytest.mark.parametrize(("first", "variant"), [(100, "born_whole"), (40, "whole")])
def test_models_that_are_known_after_the_first_step(first, variant):
    """`gradmedic run`: the first sample has no names, and those of steps 1 and 2 have."""
    made = frames(FALLING[:60])
    made[0].modules = (layer(first, module="", batches=1.0),)
    for step in (1, 2, 50):
        made[step].modules = (layer(100, batches=2.0),)
    [found] = diagnose(FakeRun(made, []))
    assert (found.code, found.variant, found.step) == ("GM303", variant, 0 if first == 100 else 1)
    early = FakeRun(made[:10], [])
    assert [f.variant for f in diagnose(early)] == (["born_whole"] if first == 100 else [])


def test_dead_in_one_call_and_alive_in_another():
    """R22."""
    rows = run_of(
        lambda k: [layer(100, batches=k + 1.0), layer(5, batches=k + 1.0) | {"call": 1}],
        FALLING,
    )
    assert diagnose(rows) == []


def test_module_rows_do_where_the_graph_shows_nothing():
    def row(k, inactive):
        shape = {"module": "act1", "what": "output", "call": 0, "leaf": "0", "numel": 6400}
        return shape | {"units": 100.0, "inactive_units": inactive, "batches": k + 1.0, "extra": {}}

    assert [f.where for f in diagnose(run_of(lambda k: [row(k, 100.0)]))] == [("act1",)]
    assert diagnose(run_of(lambda k: [row(k, 20.0)])) == []


def test_a_bias_that_kills_a_convolution():
    """F08, with its twin; the layer is named."""
    for bias in (-10.0, 0.0):
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(),
            nn.Linear(128, 10),
        )  # fmt: skip
        with torch.no_grad():
            model[3].bias.fill_(bias)
        found = diagnose(train_probed(model, torch.optim.SGD(model.parameters(), 0.05), digits(), F.cross_entropy))
        if bias:
            assert (found[0].code, found[0].variant, found[0].where) == ("GM303", "born_whole", ("3",))
            assert "bias" in found[0].remedies[0].text
            assert not any("learning rate" in remedy.text for remedy in found[0].remedies)
            assert {f.code for f in found} == {"GM303"}
        else:
            assert found == []


def test_one_step_far_too_large_kills_units():
    """F09: a learning rate 300 times too large for three steps."""
    model = mlp(4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def spike(step):
        optimizer.param_groups[0]["lr"] = 30.0 if 50 <= step < 53 else 0.1

    found = diagnose(train_probed(model, optimizer, digits(), F.cross_entropy, before_step=spike, every=10))
    everything = {f.code for f in found} | {g.code for f in found for g in f.folded}
    assert "GM303" in everything
    assert "GM509" not in {f.code for f in found}


# -- GM304 ------------------------------------------------------------------------------------------------------------


def saturated(units, gate=0.0, what="activation"):
    extra = {"samples": 64.0, "saturated_units": units, "gate": gate}
    return {
        "module": "fc1",
        "what": what,
        "call": 0,
        "leaf": "Tanh",
        "units": 100.0,
        "saturated_frac": units / 100,
        "extra": extra,
    }


@pytest.mark.parametrize(
    ("row", "curve", "expected"),
    [
        (saturated(80.0), FLAT, "warning"),
        (saturated(80.0), FALLING, "info"),
        (saturated(30.0), FLAT, None),
        (saturated(80.0, gate=1.0), FLAT, None),
    ],
)
def test_share_of_saturated_units(row, curve, expected):
    found = diagnose(run_of(lambda k: [row], curve))
    assert [(f.code, f.severity) for f in found] == ([("GM304", expected)] if expected else [])


def test_weights_of_standard_deviation_five():
    """F10, with its twin."""
    for std in (5.0, None):
        torch.manual_seed(0)
        model = mlp(5, activation=nn.Tanh, gain=1.0)
        if std:
            for module in model:
                if isinstance(module, nn.Linear):
                    nn.init.normal_(module.weight, std=std)
        found = diagnose(train_probed(model, torch.optim.SGD(model.parameters(), 0.01), digits(), F.cross_entropy))
        everything = {f.code for f in found} | {g.code for f in found for g in f.folded}
        assert ("GM304" in everything) == bool(std)
        assert not (std is None and alarms(found))


# -- GM310, GM311 -----------------------------------------------------------------------------------------------------


def attention(logit, low=0.0, heads=16.0, module="attn"):
    extra = {"heads": heads, "entropy": 0.5, "entropy_min": 0.5, "low_heads": low, "max_logit": logit, "unscaled": 0.0}
    return {"module": module, "what": "attention", "call": 0, "leaf": "0", "extra": extra}


@pytest.mark.parametrize(
    ("logit", "curve", "expected"),
    [(50.0, FLAT, None), (2e3, FALLING, "info"), (2e3, FLAT, "warning"), (2e4, FALLING, "error")],
)
def test_size_of_attention_logits(logit, curve, expected):
    found = diagnose(run_of(lambda k: [attention(logit)], curve))
    assert [(f.code, f.severity) for f in found] == ([("GM310", expected)] if expected else [])


@pytest.mark.parametrize(
    ("first", "last", "low", "curve", "expected"),
    [
        (4.0, 60.0, 0.5, FLAT, True),
        (4.0, 60.0, 0.5, FALLING, False),  # no harm
        (4.0, 60.0, 0.1, FLAT, False),  # few heads
        (20.0, 22.0, 0.5, FLAT, False),  # sinks, from the start
        (300.0, 300.0, 0.5, FLAT, True),  # hard from the start
    ],
)
def test_collapsed_heads(first, last, low, curve, expected):
    found = diagnose(run_of(lambda k: [attention(first if k == 0 else last, low)], curve))
    assert [f.code for f in found] == (["GM311"] if expected else [])


def test_missing_scale_is_said():
    row = attention(2e4)
    row["extra"]["unscaled"] = 1.0
    [found] = diagnose(run_of(lambda k: [row]))
    assert "square root of the head" in found.message


def test_queries_and_keys_thirty_times_too_large():
    """F30 in small."""

    class Block(nn.Module):
        def __init__(self, gain):
            super().__init__()
            self.embed, self.qkv, self.head = nn.Embedding(20, 32), nn.Linear(32, 96), nn.Linear(32, 20)
            with torch.no_grad():
                self.qkv.weight[:64] *= gain

        def forward(self, ids):
            b, t = ids.shape
            q, k, v = (part.view(b, t, 2, 16).transpose(1, 2) for part in self.qkv(self.embed(ids)).chunk(3, -1))
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.head(out.transpose(1, 2).flatten(2))

    def draw(step):
        generator = torch.Generator().manual_seed(step)
        return (ids := torch.randint(0, 20, (8, 24), generator=generator)), ids.roll(1, 1)

    def criterion(out, y):
        return F.cross_entropy(out.flatten(0, 1), y.flatten())

    for gain in (80.0, 1.0):
        torch.manual_seed(0)
        model = Block(gain)
        found = diagnose(train_probed(model, torch.optim.Adam(model.parameters(), 1e-3), draw, criterion, steps=60))
        everything = {f.code for f in found} | {g.code for f in found for g in f.folded}
        assert ("GM310" in everything) == (gain > 1)
        assert not (gain == 1 and alarms(found))


# -- GM312 ------------------------------------------------------------------------------------------------------------


def drift(log_z):
    return {"module": "head", "what": "loss", "call": 0, "leaf": "cross_entropy", "extra": {"log_z": log_z}}


@pytest.mark.parametrize(
    ("values", "curve", "expected"),
    [
        (lambda k: 5.0 + 5 * k, FALLING, "info"),
        (lambda k: 5.0 + 5 * k, FLAT, "warning"),
        (lambda k: 80.0 - k, FLAT, None),  # large at the start, shrinking
        (lambda k: 60.0, FLAT, None),
        (lambda k: 5.0 + k, FLAT, None),
    ],
)
def test_drift_of_output_logits(values, curve, expected):
    found = [f for f in diagnose(run_of(lambda k: [drift(values(k))], curve)) if f.code == "GM312"]
    assert [f.severity for f in found] == ([expected] if expected else [])


def test_missing_numbers_are_no_numbers():
    """Rows of an older record, or of a graph that showed little."""
    row = {"module": "fc", "what": "activation", "extra": None}
    bare = [row, row | {"what": "attention"}, row | {"what": "loss"}, row | {"what": "output", "units": math.nan}]
    assert diagnose(run_of(lambda k: bare)) == []


def test_a_slow_start_is_taken_back():
    """A loss that stands still at first makes a warning, which goes when the loss falls."""
    slow = [2.0] * 200 + [2.0 - i / 200 for i in range(300)]
    found = diagnose(run_of(lambda k: [layer(60, batches=min(k + 1.0, 20))], slow[:200], every=5))
    assert [(f.code, f.severity) for f in found] == [("GM303", "warning")]
    found = diagnose(run_of(lambda k: [layer(60, batches=min(k + 1.0, 20))], slow, every=5))
    assert [(f.code, f.severity) for f in found] == [("GM303", "info")]
