"""More ugly but healthy runs, really trained: they stress rules of single steps, rates, decay, several optimizers."""

from __future__ import annotations

import pytest
import torch
from diagnosis_frames import FakeRun, Recorder, digits, mlp, train
from torch import nn

from gradmedic.diagnosis import diagnose

CE = nn.functional.cross_entropy


def assert_healthy(run: FakeRun) -> None:
    faults = [f for f in diagnose(run) if f.severity != "info"]
    assert not faults, "\n".join(map(str, faults))


def test_critic_with_clipped_weights():
    """WGAN: losses around zero and below, weights clipped by hand, five steps of one to one of the other."""
    g = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    c = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    og, oc = torch.optim.RMSprop(g.parameters(), 1e-3), torch.optim.RMSprop(c.parameters(), 1e-3)
    recorder = Recorder({"G": g, "C": c}, {"og": og, "oc": oc})
    for step in range(260):
        real, fake = torch.randn(64, 2) * 0.3 + 1, g(torch.randn(64, 4))
        if step % 5:
            oc.zero_grad()
            loss = c(fake.detach()).mean() - c(real).mean()
            loss.backward()
            recorder.step(loss, "oc")
            with torch.no_grad():
                for p in c.parameters():
                    p.clamp_(-0.05, 0.05)
        else:
            og.zero_grad()
            loss = -c(fake).mean()
            loss.backward()
            recorder.step(loss, "og")
    assert_healthy(recorder.run)


def test_actor_and_critic_that_both_learn():
    """A bandit of ten arms: noisy losses around zero; the critic's loss comes down, the actor's gradients shrink."""
    actor, critic = nn.Linear(8, 10), nn.Linear(8, 1)
    oa, oc = torch.optim.Adam(actor.parameters(), 1e-2), torch.optim.Adam(critic.parameters(), 1e-2)
    recorder = Recorder({"actor": actor, "critic": critic}, {"oa": oa, "oc": oc})
    for _ in range(200):
        x = torch.randn(64, 8)
        policy = torch.distributions.Categorical(logits=actor(x))
        action = policy.sample()
        reward = (action == 3).float()[:, None]
        advantage = reward - critic(x)
        oc.zero_grad()
        loss = advantage.pow(2).mean()
        loss.backward()
        recorder.step(loss, "oc")
        oa.zero_grad()
        loss = -(advantage.detach()[:, 0] * policy.log_prob(action)).mean()
        loss.backward()
        recorder.step(loss, "oa")
    assert_healthy(recorder.run)


def test_full_batch_at_the_edge_of_stability():
    model, (x, y) = mlp(3, activation=nn.Tanh), digits(256)(0)
    run = train(model, torch.optim.SGD(model.parameters(), 0.5), lambda _: (x, y), 200)
    assert_healthy(run)


def test_other_data_from_the_middle_on():
    """A curriculum: harder samples come in at step 100; losses and gradients jump, and go down again."""
    model = mlp(3)
    draw = digits()

    def batch(step):
        x, y = draw(step)
        if step >= 100:
            x = x.flip(1)
        return x, y

    assert_healthy(train(model, torch.optim.AdamW(model.parameters(), 3e-3), batch, 220))


def test_batches_that_are_now_and_then_hard():
    model = mlp(3)
    draw = digits()

    def batch(step):
        x, y = draw(step)
        return (x, (y + 5) % 10) if step % 41 == 40 else (x, y)

    assert_healthy(train(model, torch.optim.Adam(model.parameters(), 1e-3), batch, 220))


def test_embedding_of_rare_words():
    """Zipf: most rows of the embedding are idle in a batch, its gradient is bursty."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(500, 16), nn.Linear(16, 2)

        def forward(self, ids):
            return self.head(torch.tanh(self.embed(ids).mean(1)))

    generator = torch.Generator().manual_seed(0)

    def batch(_step):
        u = torch.rand(64, 6, generator=generator)
        ids = (500**u - 1).long().clamp(0, 499)
        return ids, (ids.float().mean(1) > 60).long()

    model = Model()
    assert_healthy(train(model, torch.optim.AdamW(model.parameters(), 1e-2), batch, 200))


def test_cosine_decay_with_strong_but_usual_weight_decay():
    model = mlp(3)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    assert_healthy(train(model, optimizer, digits(), 200, scheduler=scheduler))


def test_hard_task_at_chance():
    """Labels of pure noise, trained at a usual rate: nothing is learned, and no rate would help."""
    model = mlp(3)
    generator = torch.Generator().manual_seed(0)

    def noise(_step):
        return torch.randn(16, 64, generator=generator), torch.randint(0, 10, (16,), generator=generator)

    for make in (lambda p: torch.optim.AdamW(p, 3e-4, weight_decay=0.1), lambda p: torch.optim.SGD(p, 1e-2)):
        assert_healthy(train(model, make(model.parameters()), noise, 150))


def test_layers_with_rates_of_their_own():
    model = mlp(4)
    groups = [{"params": model[0].parameters(), "lr": 1e-7}, {"params": list(model[2:].parameters())}]
    run = train(model, torch.optim.Adam(groups, 1e-3), digits(), 240)
    assert_healthy(run)
    assert "GM409" not in {f.code for f in diagnose(run)}


@pytest.mark.parametrize("dtype", [torch.bfloat16])
def test_autocast(dtype):
    model = mlp(3)

    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x):
            with torch.autocast("cpu", dtype):
                return self.inner(x).float()

    wrapped = Cast()
    assert_healthy(train(wrapped, torch.optim.Adam(wrapped.parameters(), 1e-3), digits(), 100))
