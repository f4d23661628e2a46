"""The loss call, as the graph shows it: which function, how reduced, fed by what, with which values."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from graph_named import probe_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradmedic.facts import Facts, LossFact
from gradmedic.probes.priors import Priors, prior_entropy

ROWS, CLASSES = 24, 5


@pytest.fixture
def setting():
    torch.manual_seed(0)
    model = nn.Linear(6, CLASSES)
    x, y = torch.randn(ROWS, 6), torch.randint(0, CLASSES, (ROWS,))
    return model, x, y, torch.rand(ROWS, CLASSES)


def fact_of(model: nn.Module, loss: torch.Tensor) -> LossFact:
    facts = probe_of(model).loss_facts([loss], step=2)
    assert len(facts) == 1
    return facts[0]


@pytest.mark.parametrize(
    ("make", "kind", "feed"),
    [
        (lambda o, y, t: F.cross_entropy(o, y), "cross_entropy", "Addmm"),
        (lambda o, y, t: F.cross_entropy(o, y, label_smoothing=0.1), "cross_entropy", "Addmm"),
        (lambda o, y, t: F.cross_entropy(o.softmax(1), y), "cross_entropy", "Softmax"),
        (lambda o, y, t: F.cross_entropy(o.sigmoid(), y), "cross_entropy", "Sigmoid"),
        (lambda o, y, t: F.cross_entropy(o.log_softmax(1), y), "cross_entropy", "LogSoftmax"),
        (lambda o, y, t: F.cross_entropy(o, t / t.sum(1, keepdim=True)), "soft_cross_entropy", "Addmm"),
        (lambda o, y, t: F.cross_entropy(o.softmax(1), t), "soft_cross_entropy", "Softmax"),
        (lambda o, y, t: F.kl_div(o.log_softmax(1), t, reduction="batchmean"), "soft_cross_entropy", "Addmm"),
        (lambda o, y, t: -o.log_softmax(1).gather(1, y[:, None]).mean(), "cross_entropy", "Addmm"),
        (lambda o, y, t: F.nll_loss(o.softmax(1), y), "nll", "Softmax"),
        (lambda o, y, t: F.nll_loss(o.softmax(1).log(), y), "nll", "Log"),
        (lambda o, y, t: F.nll_loss(o, y), "nll", "Addmm"),
        (lambda o, y, t: F.binary_cross_entropy(o.sigmoid(), t), "bce", "Sigmoid"),
        (lambda o, y, t: F.binary_cross_entropy_with_logits(o, t), "bce_with_logits", "Addmm"),
        (lambda o, y, t: F.binary_cross_entropy_with_logits(o.sigmoid(), t), "bce_with_logits", "Sigmoid"),
        (lambda o, y, t: F.mse_loss(o.tanh(), t), "mse", "Tanh"),
        (lambda o, y, t: F.mse_loss(t, o.tanh()), "mse", "Tanh"),
        (lambda o, y, t: ((o.relu() - t) ** 2).mean(), "mse", "Relu"),
        (lambda o, y, t: (t - o).square().mean(), "mse", "Addmm"),
        (lambda o, y, t: (o - t).pow(2).mean(), "mse", "Addmm"),
        (lambda o, y, t: F.l1_loss(o, t), "l1", "Addmm"),
        (lambda o, y, t: F.smooth_l1_loss(o, t), "smooth_l1", "Addmm"),
        (lambda o, y, t: F.huber_loss(o, t), "huber", "Addmm"),
        (lambda o, y, t: F.mse_loss(o.sigmoid().view(-1), t.view(-1)), "mse", "Sigmoid"),
    ],
)
def test_the_loss_call_and_its_feed_are_named(setting, make, kind, feed):
    model, x, y, t = setting
    found = fact_of(model, make(model(x), y, t))
    assert (found.kind, found.feed, found.reduction, found.step) == (
        kind,
        feed,
        "mean" if kind != "soft_cross_entropy" else found.reduction,
        2,
    )


@pytest.mark.parametrize(
    ("make", "reduction", "normalized", "weighted"),
    [
        (lambda o, t: F.mse_loss(o, t, reduction="sum"), "sum", False, False),
        (lambda o, t: F.mse_loss(o, t, reduction="sum") / ROWS, "sum", True, False),
        (lambda o, t: F.mse_loss(o, t, reduction="sum") * (1 / ROWS), "sum", True, False),
        (lambda o, t: F.mse_loss(o, t, reduction="sum") * 1024, "sum", False, False),
        (lambda o, t: F.mse_loss(o, t, reduction="none").sum(1).mean(), "mean", True, False),
        (lambda o, t: ((o - t) ** 2).sum(), "sum", False, False),
        (lambda o, t: (F.mse_loss(o, t, reduction="none") * t).mean(), "mean", False, True),
        (lambda o, t: F.mse_loss(o, t, reduction="none")[t > 0.5].mean(), "mean", False, True),
        (lambda o, t: F.mse_loss(o, t) + 0.1 * o.exp().mean(), "mean", False, False),
    ],
)
def test_the_way_to_the_root_is_followed(setting, make, reduction, normalized, weighted):
    model, x, _, t = setting
    found = fact_of(model, make(model(x), t))
    assert (found.reduction, found.normalized, found.weighted) == (reduction, normalized, weighted)


def test_class_weights_count_as_weights(setting):
    model, x, y, _ = setting
    assert fact_of(model, F.cross_entropy(model(x), y, weight=torch.ones(CLASSES))).weighted


def test_numbers_of_a_classifier_are_those_of_their_definitions(setting):
    model, x, y, _ = setting
    y[:3] = -100
    found = fact_of(model, F.cross_entropy(model(x), y)).numbers
    logits = (x.double() @ model.weight.double().T + model.bias.double()).detach()
    p = logits.softmax(1)
    counts = torch.bincount(y[3:], minlength=CLASSES)
    expected = {
        "loss": F.cross_entropy(logits, y).item(),
        "count": ROWS - 3,
        "classes": CLASSES,
        "label_share": counts.max().item() / (ROWS - 3),
        "top_share": torch.bincount(logits.argmax(1)).max().item() / ROWS,
        "entropy": -(p * p.log()).sum(1).mean().item() / math.log(CLASSES),
        "log_z": logits.logsumexp(1).abs().mean().item(),
        "positive_share": 0.0,
        "unit_rows": 0.0,
    }
    for key, number in expected.items():
        assert found[key] == pytest.approx(number, rel=1e-5), key


@pytest.mark.parametrize("shape", [(8, 4, 6), (2, 4, 3, 3)])
def test_segmentation_has_its_classes_on_the_second_axis(shape):
    torch.manual_seed(0)
    model = nn.Conv2d(3, 4, 1) if len(shape) == 4 else nn.Conv1d(3, 4, 1)
    x, y = torch.randn(shape[0], 3, *shape[2:]), torch.randint(0, 4, (shape[0], *shape[2:]))
    loss = F.cross_entropy(model(x), y)
    found = fact_of(model, loss).numbers
    assert found["classes"] == 4
    assert found["count"] == y.numel()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)


def test_a_large_vocabulary_is_sampled_evenly():
    """More rows than are looked at: the loss is estimated, labels are counted all."""
    torch.manual_seed(0)
    model = nn.Linear(8, 4096)
    x, y = torch.randn(600, 8), torch.randint(0, 4096, (600,))
    loss = F.cross_entropy(model(x), y)
    found = fact_of(model, loss).numbers
    assert found["count"] == 600
    assert found["loss"] == pytest.approx(loss.item(), rel=0.1)


def test_probabilities_given_to_nll_are_seen_without_their_softmax(setting):
    model, x, y, _ = setting
    e = model(x).exp()
    assert fact_of(model, F.nll_loss(e / e.sum(1, keepdim=True), y)).numbers["unit_rows"] == 1.0
    assert fact_of(model, F.nll_loss(model(x), y)).numbers["positive_share"] > 0.1


@pytest.mark.parametrize("kind", ["mse", "l1", "smooth_l1", "huber", "hand", "hand_l1"])
def test_numbers_of_a_regression_are_those_of_their_definitions(setting, kind):
    model, x, _, t = setting
    t = t * 3 + 1
    functions = {"mse": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss, "huber": F.huber_loss}
    functions |= {"hand": lambda a, b: ((b - a) ** 2).mean(), "hand_l1": lambda a, b: (a - b).abs().mean()}
    made = model(x)
    loss = functions[kind](made, t)
    found = fact_of(model, loss).numbers
    a, b = made.detach().double(), t.double()
    expected = {
        "loss": loss.item(),
        "baseline": functions[kind](b.mean(0).expand_as(b), b).item(),
        "target_mean": b.mean().item(),
        "target_std": b.std(correction=0).item(),
        "target_rms": b.square().mean().sqrt().item(),
        "prediction_min": a.min().item(),
        "prediction_max": a.max().item(),
        "target_spread": b.var(0, correction=0).mean().item(),
        "prediction_spread": a.var(0, correction=0).mean().item(),
    }
    for key, number in expected.items():
        assert found[key] == pytest.approx(number, rel=1e-4), key


@pytest.mark.parametrize("logits", [False, True])
def test_numbers_of_a_binary_loss(setting, logits):
    model, x, _, _ = setting
    t = (torch.rand(ROWS, CLASSES) > 0.7).float()
    out = model(x)
    loss = F.binary_cross_entropy_with_logits(out, t) if logits else F.binary_cross_entropy(out.sigmoid(), t)
    found = fact_of(model, loss).numbers
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    share = t.double().mean(0)
    assert found["label_share"] == pytest.approx(torch.maximum(share, 1 - share).mean().item())
    entropy = -(share * share.log() + (1 - share) * (1 - share).log())
    assert found["baseline"] == pytest.approx(entropy.mean().item() + 1 / (2 * ROWS), rel=1e-5)  # Miller's correction
    assert found["outside_share"] == 0
    assert found["floor"] == 0


@pytest.mark.parametrize("logits", [False, True])
def test_the_floor_of_soft_targets_is_the_loss_of_a_perfect_prediction(setting, logits):
    model, x, _, _ = setting
    t = torch.rand(ROWS, CLASSES)
    out = model(x)
    loss = F.binary_cross_entropy_with_logits(out, t) if logits else F.binary_cross_entropy(out.sigmoid(), t)
    found = fact_of(model, loss).numbers
    assert found["floor"] == pytest.approx(F.binary_cross_entropy(t, t).item(), rel=1e-5)
    assert found["floor"] < found["baseline"]


@pytest.mark.parametrize(
    ("activation", "low", "high", "share"),
    [(torch.tanh, -3.0, 3.0, 2 / 3), (torch.sigmoid, 0.0, 1.0, 0.0), (torch.relu, -1.0, 1.0, 0.5)],
)
def test_targets_outside_the_activation_s_range_are_counted(activation, low, high, share):
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    t = torch.linspace(low, high, 300)[:, None]
    found = fact_of(model, F.mse_loss(activation(model(torch.randn(300, 4))), t)).numbers
    assert found["outside_share"] == pytest.approx(share, abs=0.01)


@pytest.mark.parametrize("shapes", [((ROWS, 1), (ROWS,)), ((ROWS,), (ROWS, 1))])
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_loss_of_every_prediction_with_every_target(shapes):
    model = nn.Linear(4, 1)
    out = model(torch.randn(ROWS, 4)).reshape(shapes[0])
    assert fact_of(model, F.mse_loss(out, torch.randn(shapes[1]))).broadcast


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_one_target_for_all_is_no_broadcast_fault():
    model = nn.Linear(4, 1)
    assert not fact_of(model, F.mse_loss(model(torch.randn(ROWS, 4)), torch.ones(1))).broadcast


def test_several_losses_and_none():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    out = model(torch.randn(8, 4))
    both = F.cross_entropy(out, torch.zeros(8, dtype=torch.long)) + 0.5 * F.mse_loss(out, torch.zeros(8, 3))
    assert sorted(fact.kind for fact in probe_of(model).loss_facts([both])) == ["cross_entropy", "mse"]
    assert probe_of(model).loss_facts([out.mean()]) == []
    assert probe_of(model).loss_facts([torch.ones(())]) == []
    assert probe_of(model).loss_facts([out.exp().log_softmax(0).matmul(torch.ones(3)).sum()]) == []


def test_a_loss_inside_the_model_is_not_looked_for():
    """The search ends where the model begins: a squared difference between two layers is no loss."""
    torch.manual_seed(0)
    one, two = nn.Linear(4, 4), nn.Linear(4, 1)
    hidden = (one(torch.randn(8, 4)) - 1.0) ** 2
    assert probe_of(nn.Sequential(one, two)).loss_facts([two(hidden).mean()]) == []


def test_facts_survive_json(setting):
    import json

    model, x, y, _ = setting
    fact = fact_of(model, F.cross_entropy(model(x), y))
    facts = Facts(losses=[fact])
    assert Facts.from_json(json.loads(json.dumps(facts.to_json(), allow_nan=False))).losses == [fact]


def test_values_that_are_not_finite_are_left_out(setting):
    model, x, y, _ = setting
    x[0, 0] = math.nan
    numbers = fact_of(model, F.cross_entropy(model(x), y)).numbers
    assert "loss" not in numbers
    assert all(math.isfinite(number) for number in numbers.values())


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=8).filter(lambda counts: sum(counts) > 0))
def test_entropy_of_counts(counts):
    tensor = torch.tensor(counts, dtype=torch.float32)
    total = sum(counts)
    plain = -sum(c / total * math.log(c / total) for c in counts if c)
    seen = sum(c > 0 for c in counts)
    assert prior_entropy(tensor).item() == pytest.approx(plain + (seen - 1) / (2 * total), abs=1e-6)


def test_priors_add_up_batches_of_one_loss():
    priors = Priors()
    assert priors.add(("a", "0"), torch.tensor([1.0, 0.0])).tolist() == [1, 0]
    assert priors.add(("b", "0"), torch.tensor([5.0, 5.0])).tolist() == [5, 5]
    assert priors.add(("a", "0"), torch.tensor([1.0, 3.0])).tolist() == [2, 3]
    assert priors.add(("a", "0"), torch.tensor([1.0, 1.0, 1.0])).tolist() == [1, 1, 1]  # another number of classes


def test_labels_of_a_step_that_stands_out_do_not_count_for_how_frequent_a_class_is():
    priors = Priors()
    usual, odd = torch.tensor([49, 1]), torch.tensor([40, 10])
    assert priors.known(("loss", "0"), odd).tolist() == [40, 10]
    priors.add(("loss", "0"), usual)
    assert priors.known(("loss", "0"), odd).tolist() == [49, 1]
    assert priors.add(("loss", "0"), usual).tolist() == [98, 2]
