"""GM50x and GM51x: what the loss, its targets and the inputs show, on real trainings, with their healthy twins."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from diagnosis_frames import FakeRun, digits, fact, facts_event, frames, mlp
from graph_trainings import train_probed
from torch import nn

import gradmedic as gm
from gradmedic.diagnosis import Engine, Finding, diagnose
from gradmedic.facts import Facts, InputFact, LossFact

OURS = {"GM501", "GM502", "GM503", "GM505", "GM506", "GM507", "GM509", "GM512", "GM515"}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def sgd(model, lr=0.1):
    return torch.optim.SGD(model.parameters(), lr)


def alarms(found):
    return {f.code for f in found if f.severity != "info"}


def codes(found):
    return {f.code for f in found} | {g.code for f in found for g in f.folded}


def run_of(*losses: LossFact, inputs=(), curve=None, parameters=None, modules=None) -> FakeRun:
    facts = Facts(losses=list(losses), inputs=list(inputs), parameters=parameters or {})
    curve = [2.0 - i / 100 for i in range(120)] if curve is None else curve
    made = frames(curve)
    for frame in made:
        frame.modules = tuple(modules(frame.step)) if modules is not None and frame.step % 20 == 0 else ()
    return FakeRun(made, [facts_event(facts)])


FALLING = [2.0 - i / 100 for i in range(120)]
FLAT = [2.0] * 120


def test_nothing_is_said_where_no_loss_was_seen():
    assert diagnose(run_of()) == []


def test_healthy_classifier():
    model = mlp(3)
    run = train_probed(model, sgd(model), digits(), F.cross_entropy)
    assert diagnose(run) == []


# -- GM501 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("last", "criterion", "variant"),
    [
        (nn.Softmax(1), F.cross_entropy, "softmax"),
        (nn.Sigmoid(), F.cross_entropy, "bounded"),
        (nn.Softmax(1), F.nll_loss, "missing_log"),
        (nn.Identity(), F.nll_loss, "raw"),
        (nn.Sigmoid(), lambda o, y: F.binary_cross_entropy_with_logits(o, F.one_hot(y, 10).float()), "sigmoid"),
        (
            nn.Sequential(nn.Sigmoid(), nn.Sigmoid()),
            lambda o, y: F.binary_cross_entropy(o, F.one_hot(y, 10).float()),
            "twice",
        ),
    ],
)
def test_a_last_activation_that_does_not_fit_the_loss(last, criterion, variant):
    model = nn.Sequential(mlp(2), last)
    found = diagnose(train_probed(model, sgd(model, 0.01), digits(), criterion, steps=5))
    first = next(f for f in found if f.code == "GM501")
    assert (first.variant, first.severity, first.step) == (variant, "error", 0)
    assert found[0] is first


def test_the_floor_of_a_double_softmax_is_what_the_loss_comes_to():
    """rules.md: ln(1 + (K - 1) / e) is 1.461 for ten classes."""
    model = nn.Sequential(mlp(2), nn.Softmax(1))
    found = diagnose(
        train_probed(model, torch.optim.Adam(model.parameters(), 0.01), digits(), F.cross_entropy, steps=60)
    )
    assert found[0].params["floor"] == pytest.approx(1.461, abs=1e-3)
    assert "1.46" in found[0].message


@pytest.mark.parametrize(
    ("last", "criterion"),
    [
        (nn.LogSoftmax(1), F.nll_loss),
        (nn.LogSoftmax(1), F.cross_entropy),
        (nn.Sigmoid(), lambda o, y: F.binary_cross_entropy(o, F.one_hot(y, 10).float())),
        (nn.Softmax(1), lambda o, y: F.nll_loss(o.clamp(min=1e-9).log(), y)),
        (nn.Softmax(1), lambda o, y: F.mse_loss(o, F.one_hot(y, 10).float())),
        (nn.Identity(), lambda o, y: F.cross_entropy(10 * F.normalize(o), y)),
        (nn.Identity(), lambda o, y: F.kl_div(o.log_softmax(1), F.one_hot(y, 10).float(), reduction="batchmean")),
    ],
)
def test_last_activations_that_fit(last, criterion):
    """H25 and others."""
    model = nn.Sequential(mlp(2), last)
    found = diagnose(train_probed(model, sgd(model), digits(), criterion, steps=5))
    assert not alarms(found)


# -- GM502 -----------------------------------------------------------------------------------------------------------


def regression(scale=1.0, shift=0.0, batch=64):
    """y is a smooth function of x, standardised, then scaled and shifted."""
    generator = torch.Generator().manual_seed(3)
    w = torch.randn(8, generator=generator)

    def draw(_step):
        x = torch.randn(batch, 8, generator=generator)
        y = torch.tanh(x @ w / 2) * 1.4
        return x, (y * scale + shift)[:, None]

    return draw


def head(activation: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1), activation)


@pytest.mark.parametrize(
    ("activation", "limits"), [(nn.ReLU(), "[0, inf)"), (nn.Sigmoid(), "[0, 1]"), (nn.Softplus(), "[0, inf)")]
)
def test_targets_that_the_output_cannot_reach(activation, limits):
    """F17."""
    model = head(activation)
    found = diagnose(train_probed(model, sgd(model, 0.05), regression(), F.mse_loss, steps=5))
    assert (found[0].code, found[0].severity, found[0].where) == ("GM502", "error", ("2",))
    assert limits in found[0].message


def test_labels_of_minus_one_in_a_binary_loss():
    model = head(nn.Identity())
    draw = regression()

    def signs(step):
        x, y = draw(step)
        return x, y.sign()

    found = diagnose(train_probed(model, sgd(model), signs, F.binary_cross_entropy_with_logits, steps=5))
    assert (found[0].code, found[0].variant) == ("GM502", "binary")


@pytest.mark.parametrize(
    ("activation", "scale", "shift"), [(nn.Tanh(), 0.7, 0.0), (nn.ReLU(), 0.5, 1.0), (nn.Identity(), 1.0, 0.0)]
)
def test_targets_within_reach(activation, scale, shift):
    model = head(activation)
    assert not alarms(diagnose(train_probed(model, sgd(model, 0.05), regression(scale, shift), F.mse_loss, steps=60)))


def test_masked_targets_are_not_judged():
    loss = LossFact(0, "mse", "head", feed="Tanh", weighted=True, numbers={"outside_share": 0.4})
    assert diagnose(run_of(loss)) == []
    assert alarms(diagnose(run_of(dataclasses.replace(loss, weighted=False)))) == {"GM502"}


# -- GM503 -----------------------------------------------------------------------------------------------------------


def test_a_sum_with_sgd_that_blows_up():
    """F18."""
    model = mlp(3)
    run = train_probed(model, sgd(model, 0.1), digits(256), lambda o, y: F.cross_entropy(o, y, reduction="sum"))
    found = diagnose(run)
    assert (found[0].code, found[0].severity) == ("GM503", "warning")
    assert found[0].params["terms"] == 256


@pytest.mark.parametrize(
    ("make", "lr", "criterion", "variant"),
    [
        (torch.optim.Adam, 1e-3, lambda o, y: F.cross_entropy(o, y, reduction="sum"), "adaptive"),
        (torch.optim.SGD, 1e-3, lambda o, y: F.cross_entropy(o, y, reduction="sum"), "note"),
        (torch.optim.SGD, 0.1, lambda o, y: F.cross_entropy(o, y, reduction="sum") / len(y), None),
    ],
)
def test_a_sum_that_does_no_harm_is_a_note(make, lr, criterion, variant):
    model = mlp(3)
    found = diagnose(train_probed(model, make(model.parameters(), lr), digits(), criterion, steps=120))
    assert not alarms(found)
    assert [f.variant for f in found if f.code == "GM503"] == ([variant] if variant else [])


# -- GM505 -----------------------------------------------------------------------------------------------------------


def confident(loss=9.0, **more):
    numbers = {"loss": loss, "classes": 10.0, "count": 64.0}
    return LossFact(0, "cross_entropy", "head", feed="Addmm", numbers=numbers, **more)


@pytest.mark.parametrize(("curve", "severity"), [(FALLING, "info"), (FLAT, "warning")])
def test_a_first_loss_far_above_that_of_a_guess(curve, severity):
    found = [f for f in diagnose(run_of(confident(), curve=curve)) if f.code == "GM505"]
    assert [(f.severity, f.where) for f in found] == [(severity, ("head",))]
    assert found[0].params["times"] == pytest.approx(9 / math.log(10))


@pytest.mark.parametrize("loss", [confident(4.5), confident(weighted=True), confident(math.log(10))])
def test_first_losses_that_are_ordinary(loss):
    assert diagnose(run_of(loss)) == []


def test_an_output_layer_with_weights_ten_times_too_large():
    model = mlp(3, gain=1.0)
    with torch.no_grad():
        model[-1].weight.mul_(30)
    found = diagnose(train_probed(model, sgd(model, 1e-3), digits(), F.cross_entropy, steps=10))
    assert "GM505" in codes(found)
    assert not alarms(found)


# -- GM506, GM507, GM512 -----------------------------------------------------------------------------------------------


def table_input(**more):
    return InputFact("input0", 0, (64, 30), **({"minimum": 0.0, "maximum": 4000.0, "mean": 60.0, "std": 230.0} | more))


@pytest.mark.parametrize(
    ("entry", "curve", "expected"),
    [
        (table_input(feature_ratio=1e4), FLAT, ("warning", "uneven")),
        (table_input(feature_ratio=1e4), FALLING, ("info", "uneven")),
        (table_input(feature_ratio=None), FLAT, ("warning", "")),
        (table_input(mean=0.0, std=1.0, feature_ratio=3.0), FLAT, None),
        (table_input(mean=0.01, std=0.3, feature_ratio=300.0), FLAT, None),  # rare columns of a one-hot table
        (table_input(dtype="int64"), FLAT, None),
    ],
)
def test_inputs_out_of_scale(entry, curve, expected):
    found = [f for f in diagnose(run_of(inputs=[entry], curve=curve)) if f.code == "GM506"]
    assert [(f.severity, f.variant) for f in found] == ([expected] if expected else [])


def test_a_normalisation_that_comes_first_absorbs_it():
    first = fact("bn.weight", (30,), kind="BatchNorm1d", order=0)
    later = fact("fc.weight", (30, 2), order=1)
    facts = {each.name: each for each in (later, first)}
    assert "GM506" not in codes(diagnose(run_of(inputs=[table_input()], curve=FLAT, parameters=facts)))


def test_raw_tables_really_do_not_train():
    """F13: breast cancer, values up to 4000, with its standardised twin."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    raw, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target)
    results = []
    for x in (raw, (raw - raw.mean(0)) / raw.std(0)):
        torch.manual_seed(0)
        generator = torch.Generator().manual_seed(0)
        model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Linear(16, 2))

        def draw(_step, x=x, generator=generator):
            rows = torch.randint(0, len(x), (32,), generator=generator)
            return x[rows], y[rows]

        results.append(diagnose(train_probed(model, sgd(model, 0.05), draw, F.cross_entropy)))
    assert results[0][0].code == "GM506"
    assert results[1] == []


def test_targets_far_larger_than_the_output():
    """F14 without its tanh: raw targets of 25 to 346, a learning rate that cannot follow."""
    model = head(nn.Identity())
    run = train_probed(model, sgd(model, 1e-5), regression(77.0, 152.0), F.mse_loss, steps=200)
    found = diagnose(run)
    first = next(f for f in found if f.code == "GM507")
    assert (first.severity, first.step) == ("warning", 0)
    assert first.params["mean"] == pytest.approx(152, abs=30)


def test_raw_targets_that_are_learned_all_the_same_are_a_note():
    model = head(nn.Identity())
    run = train_probed(model, torch.optim.Adam(model.parameters(), 0.5), regression(77.0, 152.0), F.mse_loss, steps=160)
    assert not alarms(diagnose(run))


def test_standardised_targets_with_a_head_that_begins_at_zero():
    model = head(nn.Identity())
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    found = diagnose(train_probed(model, sgd(model, 0.05), regression(), F.mse_loss))
    assert "GM507" not in codes(found)
    assert not alarms(found)


def ids(share, name="input_ids", step=0, maximum=30_000.0):
    return InputFact(name, step, (8, 128), "int64", maximum=maximum, std=5000.0, mode_share=share)


@pytest.mark.parametrize(
    ("entries", "curve", "expected"),
    [
        ([ids(0.8), ids(0.8, step=1)], FALLING, "info"),
        ([ids(0.8), ids(0.8, step=1)], FLAT, "warning"),
        ([ids(0.4), ids(0.3, step=1)], FLAT, None),
        ([ids(0.9, "mask", maximum=1.0), ids(0.9, "mask", 1, 1.0)], FLAT, None),
        ([ids(0.9)], FLAT, None),
    ],
)
def test_one_id_that_fills_the_batch(entries, curve, expected):
    found = [f for f in diagnose(run_of(inputs=entries, curve=curve)) if f.code == "GM512"]
    assert [f.severity for f in found] == ([expected] if expected else [])


# -- GM509, GM515 ------------------------------------------------------------------------------------------------------


def test_a_rare_class_that_is_never_learned():
    """F45: 98 to 2, inputs that hold the answer weakly, a learning rate that is small."""
    generator = torch.Generator().manual_seed(1)

    def draw(_step):
        y = (torch.rand(256, generator=generator) < 0.02).long()
        return torch.randn(256, 8, generator=generator), y

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    found = diagnose(train_probed(model, sgd(model, 0.1), draw, F.cross_entropy, steps=220))
    first = next(f for f in found if f.code == "GM509")
    assert (first.variant, first.severity) == ("imbalance", "warning")


def test_a_rare_class_that_is_learned():
    generator = torch.Generator().manual_seed(1)

    def draw(_step):
        y = (torch.rand(256, generator=generator) < 0.05).long()
        return torch.randn(256, 8, generator=generator) + 3 * y[:, None], y

    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    assert diagnose(train_probed(model, sgd(model, 0.1), draw, F.cross_entropy, steps=220)) == []


def test_a_network_cut_from_its_input_predicts_the_prior():
    """All hidden units dead: the constant prediction is a consequence."""
    model = mlp(3)
    with torch.no_grad():
        model[2].bias.fill_(-50.0)
    found = diagnose(train_probed(model, sgd(model), digits(), F.cross_entropy, steps=160))
    assert found[0].code == "GM303"
    assert "GM509" in {f.code for f in found[0].folded} | {"GM509"}
    assert "GM509" not in {f.code for f in found}


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_of_every_prediction_with_every_target():
    model = head(nn.Flatten(0))
    draw = regression()
    found = diagnose(train_probed(model, sgd(model, 0.05), draw, F.mse_loss, steps=120))
    assert (found[0].code, found[0].variant, found[0].severity) == ("GM515", "broadcast", "error")


def test_an_output_that_is_the_same_for_all():
    model = head(nn.Identity())
    with torch.no_grad():
        model[0].bias.fill_(-50.0)
    found = diagnose(train_probed(model, sgd(model, 0.05), regression(), F.mse_loss, steps=200))
    assert "GM515" in codes(found)
    assert found[0].code == "GM303"


def test_live_and_json_say_the_same():
    """Findings depend on nothing but what events and frames hold."""
    import json

    model = nn.Sequential(mlp(2), nn.Softmax(1))
    run = train_probed(model, sgd(model), digits(), F.cross_entropy, steps=30)
    engine = Engine(strict=True)
    for event in run.events:
        engine.on_event(json.loads(json.dumps(event)))
    for frame in run.frames():
        engine.on_frame(frame)
    engine.finish()
    assert [f.code for f in engine.findings()] == [f.code for f in diagnose(run)]
    assert set(OURS) & codes(engine.findings())


def constant(k, loss):
    extra = {"loss": loss, "baseline": 2.3, "labels_seen": 1e4, "top_share": 0.99, "label_share": 0.1, "weighted": 0.0}
    return {"module": "head", "what": "loss", "call": 0, "leaf": "cross_entropy", "extra": extra}


@pytest.mark.parametrize(("until", "expected"), [(140, []), (10_000, ["GM509"])])
def test_a_constant_prediction_that_is_left_behind_is_taken_back(until, expected):
    curve = [2.3 if i < until else 1.0 for i in range(300)]
    run = run_of(curve=curve, modules=lambda step: [constant(step, curve[step])])
    assert [f.code for f in diagnose(run) if f.code == "GM509"] == expected


@pytest.mark.parametrize(
    ("end", "kind", "expected"),
    [
        (2.23, "SGD", [("GM403", "warning", ["GM509"])]),
        (2.23, "AdamW", [("GM509", "warning", []), ("GM403", "info", [])]),
        (1.2, "SGD", [("GM403", "info", [])]),
    ],
)
def test_over_clipping_explains_a_loss_that_creeps_to_that_of_a_constant(end, kind, expected):
    """Steps clipped to a small part let the loss fall by a few percent; nothing but the prior is learned by them."""
    curve = [2.45 + (end - 2.45) * i / 399 for i in range(400)]
    run = run_of(curve=curve, modules=lambda step: [constant(step, curve[step])])
    for frame in run.frames():
        frame.clip_scale, frame.clipped, frame.clip_threshold, frame.clip_frequency = 0.02, True, 0.01, 1.0
    run = FakeRun(list(run.frames()), [facts_event(Facts(optimizers={"SGD": {"class": kind, "defaults": {}}}))])
    assert [(f.code, f.severity, [g.code for g in f.folded]) for f in diagnose(run)] == expected


def rare(weights: str, steps: int = 160) -> list[Finding]:
    """One sample in twenty is positive, and can be told from the others."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1 if "pos" in weights else 2))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    criterion = {
        "pos, turned round": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1 / 19])),
        "pos, right": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([19.0])),
        "pos, mild": nn.BCEWithLogitsLoss(pos_weight=torch.tensor([0.8])),
        "turned round": nn.CrossEntropyLoss(weight=torch.tensor([1.9, 0.1])),
        "right": nn.CrossEntropyLoss(weight=torch.tensor([0.1, 1.9])),
    }[weights]
    with gm.watch(net, optimizer, strict=True, modules_every=10) as monitor:
        for _ in range(steps):
            y = (torch.rand(64) < 0.05).float()
            out = net(torch.randn(64, 6) + 1.2 * y[:, None])
            optimizer.zero_grad()
            (criterion(out[:, 0], y) if "pos" in weights else criterion(out, y.long())).backward()
            optimizer.step()
    return [found for found in monitor.diagnose() if found.severity != "info"]


@pytest.mark.parametrize("weights", ["pos, turned round", "turned round"])
def test_class_weights_the_wrong_way_round(weights):
    [found] = rare(weights)
    assert (found.code, found.variant, found.severity, found.where) == ("GM509", "weights", "warning", ("2",))
    assert found.params["ratio"] == pytest.approx(19, rel=1e-3)


@pytest.mark.parametrize("weights", ["pos, right", "pos, mild", "right"])
def test_class_weights_as_they_should_be(weights):
    assert rare(weights) == []
