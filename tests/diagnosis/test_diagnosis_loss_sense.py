"""Losses that are maximised, labels and inputs that say nothing, and models that see their targets: real trainings."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from diagnosis_frames import digits
from sklearn.datasets import load_digits
from torch import nn

import gradmedic as gm

CODES = ("GM504", "GM510", "GM513", "GM514")
BATCHES = digits()
Loss = Callable[[nn.Module, int], torch.Tensor]


def mlp(outputs: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, outputs))


def trained(model: nn.Module, loss: Loss, steps: int = 12, *, every: int = 4, optimizer=None) -> list[gm.Finding]:
    """Findings of these rules alone, after so many steps."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), 1e-3)
    with gm.watch(model, optimizer, strict=True, modules_every=every, rules=CODES) as monitor:
        for step in range(steps):
            optimizer.zero_grad()
            loss(model, step).backward()
            optimizer.step()
    return monitor.findings


def brief(findings: list[gm.Finding]) -> list[tuple[str, str, str]]:
    return [(finding.code, finding.variant, finding.severity) for finding in findings]


def cross_entropy(model: nn.Module, step: int) -> torch.Tensor:
    x, y = BATCHES(step)
    return F.cross_entropy(model(x), y)


def number(y: torch.Tensor) -> torch.Tensor:
    return y.float()[:, None]


# -- GM504 ---------------------------------------------------------------------------------------------------------

MAXIMISED: dict[str, tuple[int, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]] = {
    "minus": (10, lambda z, y: -F.cross_entropy(z, y)),
    "factor": (10, lambda z, y: F.cross_entropy(z, y) * -1.0),
    "difference": (10, lambda z, y: 0 - nn.CrossEntropyLoss()(z, y)),
    "nll": (10, lambda z, y: -F.nll_loss(z.log_softmax(1), y)),
    "no minus": (10, lambda z, y: z.log_softmax(-1).gather(1, y[:, None]).mean()),
    "squared error": (1, lambda z, y: -((z - number(y)) ** 2).mean()),
    "binary": (1, lambda z, y: -F.binary_cross_entropy_with_logits(z, (number(y) > 4).float())),
}


@pytest.mark.parametrize("name", MAXIMISED)
def test_a_loss_that_is_maximised(name):
    outputs, criterion = MAXIMISED[name]

    def loss(model, step):
        x, y = BATCHES(step)
        return criterion(model(x), y)

    [finding] = trained(mlp(outputs), loss, 30)
    assert brief([finding]) == [("GM504", "", "error")]
    assert finding.step == 0
    assert finding.where == ("2",)


def test_a_maximising_optimizer():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, maximize=True)
    assert brief(trained(model, cross_entropy, 30, optimizer=optimizer)) == [("GM504", "maximize", "error")]
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, maximize=True)
    assert trained(model, lambda m, step: -cross_entropy(m, step), 30, optimizer=optimizer) == []


def entropy_bonus(model, step):
    x, y = BATCHES(step)
    z = model(x)
    return F.cross_entropy(z, y) + 0.1 * (z.softmax(1) * z.log_softmax(1)).sum(1).mean()


def policy_gradient(model, step):
    x, y = BATCHES(step)
    chances = torch.distributions.Categorical(logits=model(x))
    actions = chances.sample()
    return -(chances.log_prob(actions) * ((actions == y).float() - 0.1)).mean()


def penalties(model, step):
    """A reward of -1 for every action: log-probabilities that are lowered by design."""
    x, _ = BATCHES(step)
    picked = model(x).log_softmax(1)[:, :1]
    return (-1.0 * -picked).mean()


def distillation(model, step):
    x, y = BATCHES(step)
    z = model(x)
    return F.cross_entropy(z, y) + F.kl_div(z.log_softmax(1), torch.full((len(y), 10), 0.1), reduction="batchmean")


def turns(model, step):
    """Unlearning: a forget set is raised in every second step."""
    return cross_entropy(model, step) * (1 if step % 2 else -0.1)


@pytest.mark.parametrize(
    "loss", [cross_entropy, entropy_bonus, policy_gradient, penalties, distillation, turns], ids=lambda f: f.__name__
)
def test_losses_of_the_right_sign_are_quiet(loss):
    assert trained(mlp(), loss, 14, every=1) == []


def test_two_networks_that_play_against_each_other_are_quiet():
    """The saturating loss of a generator is the negative of the discriminator's."""
    generator, critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
    own, other = torch.optim.Adam(generator.parameters(), 1e-3), torch.optim.Adam(critic.parameters(), 1e-3)
    models, optimizers = {"G": generator, "D": critic}, {"G": own, "D": other}
    with gm.watch(models, optimizers, strict=True, modules_every=2, rules=CODES) as monitor:
        for _ in range(12):
            fake, real = generator(torch.randn(32, 4)), torch.randn(32, 2) + 3
            other.zero_grad()
            F.binary_cross_entropy_with_logits(
                torch.cat([critic(real), critic(fake.detach())]), torch.cat([torch.ones(32, 1), torch.zeros(32, 1)])
            ).backward()
            other.step()
            own.zero_grad()
            (-F.binary_cross_entropy_with_logits(critic(fake), torch.zeros(32, 1))).backward()
            own.step()
    assert monitor.findings == []


# -- GM514 and GM510 -----------------------------------------------------------------------------------------------


class Cut(nn.Module):
    """Its hidden layer is multiplied by zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 32), nn.Linear(32, 10)

    def forward(self, x):
        return self.last(F.relu(self.first(x) * 0 + 1))


@pytest.mark.parametrize(
    "spoil", [torch.zeros_like, lambda x: x[:1].expand_as(x) * 1.0, lambda x: torch.floor(x / 1e3)]
)
def test_inputs_that_are_the_same_for_all_samples(spoil):
    def loss(model, step):
        x, y = BATCHES(step)
        return F.cross_entropy(model(spoil(x.abs())), y)

    [finding] = trained(mlp(), loss)
    assert brief([finding]) == [("GM514", "", "error")]
    assert (finding.step, finding.where) == (0, ("0",))


def test_inputs_that_do_not_reach_the_output():
    assert brief(trained(Cut(), cross_entropy, 90, every=10)) == [("GM514", "prediction", "warning")]


def test_a_last_layer_that_starts_at_zero_and_labels_of_one_class_are_quiet():
    model = mlp()
    nn.init.zeros_(model[2].weight)
    assert trained(model, cross_entropy, 60, every=10) == []
    one = lambda model, step: F.cross_entropy(model(BATCHES(step)[0] * 0), torch.zeros(64, dtype=torch.long))  # noqa: E731
    assert trained(mlp(), one, 12) == []


def mixed(model, step):
    """Labels that go with other inputs of the batch."""
    x, y = BATCHES(step)
    return F.cross_entropy(model(x), y[torch.randperm(len(y))])


def test_labels_that_have_nothing_to_do_with_the_inputs():
    found = trained(mlp(), mixed, 200, every=20)
    assert [(f.code, f.severity) for f in found] == [("GM510", "warning")]
    assert "nothing to do with the inputs" in found[0].message


def test_labels_that_can_be_learned_and_too_few_steps_are_quiet():
    assert trained(mlp(), cross_entropy, 160, every=20) == []
    assert trained(mlp(), mixed, 100, every=20) == []
    slow = mlp()
    optimizer = torch.optim.SGD(slow.parameters(), 1e-7)
    assert trained(slow, cross_entropy, 160, every=20, optimizer=optimizer) == []


@pytest.mark.parametrize(("lr", "size"), [(3e-4, 32), (3e-4, 8)])
def test_a_loss_that_falls_slowly_is_no_matter_of_the_labels(lr, size):
    """With a small rate the loss of a constant is left only after hundreds of steps."""
    images, labels = load_digits(return_X_y=True)

    def loss(model, step):
        at = torch.randperm(1500, generator=torch.Generator().manual_seed(step))[:size]
        return F.cross_entropy(model(torch.tensor(images[at] / 16).float()), torch.tensor(labels[at]))

    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9)
    assert trained(model, loss, 480, every=50, optimizer=optimizer) == []


def test_an_overfit_probe_settles_it():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with gm.watch(model, optimizer, strict=True, modules_every=20, rules=CODES) as monitor:
        for step in range(150):
            optimizer.zero_grad()
            mixed(model, step).backward()
            optimizer.step()
            if step == 100:
                [result] = monitor.probe(lambda x, y: F.cross_entropy(model(x), y), *BATCHES(step), only="overfit")
    assert result.verdict == "fits"
    assert brief(monitor.findings) == [("GM510", "fits", "error")]


# -- GM513 ---------------------------------------------------------------------------------------------------------

T, B, V, D = 12, 8, 24, 16


def text(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, V, (B, T + 1), generator=generator)
    return ids[:, :-1], ids[:, 1:]


class Attention(nn.Module):
    """One layer of attention, written out."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.embedding, self.place, self.causal = nn.Embedding(V, D), nn.Parameter(torch.randn(T, D)), causal
        self.qkv, self.head = nn.Linear(D, 3 * D), nn.Linear(D, V)

    def forward(self, ids):
        h = self.embedding(ids) + self.place
        q, k, v = self.qkv(h).chunk(3, -1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(D)
        if self.causal:
            scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -1e9)
        return self.head(h + scores.softmax(-1) @ v)


class Encoder(nn.Module):
    """torch's own layers."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 32, dropout=0.1, batch_first=True)
        self.embedding, self.layers, self.head = nn.Embedding(V, D), nn.TransformerEncoder(layer, 1), nn.Linear(D, V)
        self.mask = nn.Transformer.generate_square_subsequent_mask(T) if causal else None

    def forward(self, ids):
        return self.head(self.layers(self.embedding(ids), mask=self.mask))


class Recurrent(nn.Module):
    """An LSTM, one way or both."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(V, D)
        self.rnn = nn.LSTM(D, D, batch_first=True, bidirectional=not causal)
        self.head = nn.Linear(D if causal else 2 * D, V)

    def forward(self, ids):
        return self.head(self.rnn(self.embedding(ids))[0])


class Translator(nn.Module):
    """An encoder that reads everything, and a decoder."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(V, D), nn.Linear(D, V)
        self.both = nn.Transformer(D, 2, 1, 1, 32, 0.0, batch_first=True)
        self.mask = nn.Transformer.generate_square_subsequent_mask(T) if causal else None

    def forward(self, source, ids):
        return self.head(self.both(self.embedding(source), self.embedding(ids), tgt_mask=self.mask))


def next_token(model, step):
    ids, target = text(step)
    return F.cross_entropy(model(ids).reshape(-1, V), target.reshape(-1))


def shifted_inside(model, step):
    ids, _ = text(step)
    return F.cross_entropy(model(ids)[:, :-1].transpose(1, 2), ids[:, 1:])


def masked_tokens(model, step):
    ids, _ = text(step)
    hidden = torch.rand(ids.shape) < 0.2
    hidden[0, 0] = True
    return F.cross_entropy(model(ids.masked_fill(hidden, 0)).transpose(1, 2), ids.masked_fill(~hidden, -100))


def tags(model, step):
    ids, _ = text(step)
    return F.cross_entropy(model(ids).transpose(1, 2), ids % 5)


@pytest.mark.parametrize("loss", [next_token, shifted_inside], ids=lambda f: f.__name__)
@pytest.mark.parametrize(
    ("kind", "variant", "where"),
    [(Attention, "", "qkv"), (Encoder, "", "layers.layers.0.self_attn"), (Recurrent, "recurrent", "rnn")],
)
def test_models_that_see_what_they_are_to_predict(kind, variant, where, loss):
    [finding] = trained(kind(causal=False), loss, 4)
    assert brief([finding]) == [("GM513", variant, "error")]
    assert (finding.step, finding.where) == (0, (where,))
    assert trained(kind(causal=True), loss, 4) == []


@pytest.mark.parametrize("kind", [Attention, Encoder, Recurrent])
@pytest.mark.parametrize("loss", [masked_tokens, tags], ids=lambda f: f.__name__)
def test_looking_ahead_is_fine_where_something_else_is_predicted(kind, loss):
    assert trained(kind(causal=False), loss, 4) == []


def test_an_encoder_may_read_another_text():
    def loss(model, step):
        ids, target = text(step)
        return F.cross_entropy(model(text(step + 1000)[0], ids).transpose(1, 2), target)

    def same(model, step):
        ids, target = text(step)
        return F.cross_entropy(model(ids, ids).transpose(1, 2), target)

    assert trained(Translator(causal=True), loss, 4) == []
    assert trained(Translator(causal=True), same, 4) == []  # an autoencoder of sequences
    assert [finding.code for finding in trained(Translator(causal=False), loss, 4)] == ["GM513"]
