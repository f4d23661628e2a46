"""Ugly but healthy runs, really trained: no finding at warning or above."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from diagnosis_frames import FakeRun, Recorder, digits, mlp, train
from torch import nn

from gradmedic.diagnosis import diagnose

CE = nn.functional.cross_entropy


def assert_healthy(run: FakeRun) -> None:
    faults = [f for f in diagnose(run) if f.severity != "info"]
    assert not faults, "\n".join(map(str, faults))


@pytest.mark.parametrize("kind", ["adam", "sgd", "adamw"])
def test_plain_mlp(kind):
    model = mlp(3)
    make = {
        "adam": lambda p: torch.optim.Adam(p, 1e-3),
        "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        "adamw": lambda p: torch.optim.AdamW(p, 3e-3),
    }[kind]
    assert_healthy(train(model, make(model.parameters()), digits(), 120))


def test_frozen_backbone_and_head():
    model = mlp(5)
    for layer in list(model)[:-1]:
        layer.requires_grad_(False)
    assert_healthy(train(model, torch.optim.SGD(model[-1].parameters(), 0.1), digits(), 80))


def test_mixture_with_a_rarely_used_expert():
    class Mixture(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(64, 32) for _ in range(4))
            self.head = nn.Linear(32, 10)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            chosen = 3 if self.calls % 97 == 0 else self.calls % 3
            return self.head(torch.relu(self.experts[chosen](x)))

    model = Mixture()
    assert_healthy(train(model, torch.optim.Adam(model.parameters(), 1e-3), digits(), 90))  # expert 3: never
    assert_healthy(train(model, torch.optim.Adam(model.parameters(), 1e-3), digits(), 230))


def test_alternating_tasks():
    trunk, heads = nn.Linear(64, 32), nn.ModuleDict({"a": nn.Linear(32, 10), "b": nn.Linear(32, 10)})
    model = nn.ModuleDict({"trunk": trunk, "heads": heads})
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    recorder, draw = Recorder(model, optimizer), digits()
    for step in range(100):
        optimizer.zero_grad()
        x, y = draw(step)
        loss = CE(heads["a" if (step // 25) % 2 == 0 else "b"](torch.relu(trunk(x))), y)
        loss.backward()
        recorder.step(loss)
    assert_healthy(recorder.run)


def test_gan_with_two_optimizers():
    g = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    d = nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
    og, od = torch.optim.Adam(g.parameters(), 2e-3, betas=(0.5, 0.9)), torch.optim.Adam(d.parameters(), 2e-3)
    recorder = Recorder({"G": g, "D": d}, {"og": og, "od": od})
    bce = nn.functional.binary_cross_entropy_with_logits
    for _ in range(100):
        angle = 2 * math.pi * torch.rand(64, 1)
        real = torch.cat([angle.cos(), angle.sin()], 1)
        od.zero_grad()
        fake = g(torch.randn(64, 4))
        loss = bce(d(real), torch.ones(64, 1)) + bce(d(fake.detach()), torch.zeros(64, 1))
        loss.backward()
        recorder.step(loss, "od")
        og.zero_grad()
        loss = bce(d(fake), torch.ones(64, 1))
        loss.backward()
        recorder.step(loss, "og")
    assert_healthy(recorder.run)


def test_gradient_accumulation():
    model = mlp(3)
    assert_healthy(train(model, torch.optim.SGD(model.parameters(), 0.1), digits(16), 60, accumulate=4))


def test_lora_with_zero_initialised_b():
    base = mlp(3)
    train(base, torch.optim.Adam(base.parameters(), 1e-3), digits(), 60)

    class Lora(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.linear = linear.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(4, linear.in_features) / 8)
            self.b = nn.Parameter(torch.zeros(linear.out_features, 4))

        def forward(self, x):
            return self.linear(x) + x @ self.a.T @ self.b.T

    model = nn.Sequential(*(Lora(layer) if isinstance(layer, nn.Linear) else layer for layer in base))
    trained = [p for p in model.parameters() if p.requires_grad]
    run = train(model, torch.optim.AdamW(trained, 1e-3), digits(seed=1), 100)
    zero = [name for name in run.recorded[0].tensors if name.endswith("a") and run.recorded[0].tensors[name].norm == 0]
    assert len(zero) == 3  # the confounder is there
    assert_healthy(run)


def test_zero_initialised_residual():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.fc2 = nn.Linear(32, 32), nn.Linear(32, 32)
            nn.init.zeros_(self.fc2.weight)
            nn.init.zeros_(self.fc2.bias)

        def forward(self, x):
            return x + self.fc2(torch.relu(self.fc1(x)))

    model = nn.Sequential(nn.Linear(64, 32), *(Block() for _ in range(8)), nn.Linear(32, 10))
    assert_healthy(train(model, torch.optim.SGD(model.parameters(), 0.05), digits(), 120))


def test_one_cycle_down_to_nothing():
    model = mlp(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=151, final_div_factor=1e7)
    assert_healthy(train(model, optimizer, digits(), 150, scheduler=scheduler))


def test_converged_to_almost_zero_loss():
    x, y = digits()(0)
    model = mlp(3, width=64)
    run = train(model, torch.optim.Adam(model.parameters(), 3e-3), lambda _: (x, y), 300)
    assert run.recorded[-1].loss < 1e-2
    resumed = train(model, torch.optim.Adam(model.parameters(), 1e-4), lambda _: (x, y), 100)
    assert_healthy(run)
    assert_healthy(resumed)


def test_noisy_loss_that_never_falls():
    model = mlp(3)
    generator = torch.Generator().manual_seed(0)

    def noise(_step):
        return torch.randn(8, 64, generator=generator), torch.randint(0, 10, (8,), generator=generator)

    assert_healthy(train(model, torch.optim.Adam(model.parameters(), 1e-3), noise, 150))


def test_fine_tuning_with_a_tiny_rate():
    model = mlp(4)
    train(model, torch.optim.Adam(model.parameters(), 1e-3), digits(), 150)
    tuned = copy.deepcopy(model)
    assert_healthy(train(tuned, torch.optim.AdamW(tuned.parameters(), 1e-6), digits(seed=2), 100))


def test_tiny_transformer_that_clips_through_its_warm_up():
    torch.manual_seed(0)
    vocabulary, length = 16, 12

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(vocabulary, 32)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(2)
            )
            self.norm = nn.LayerNorm(32)
            self.head = nn.Linear(32, vocabulary)

        def forward(self, x):
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            x = self.embed(x)
            for block in self.blocks:
                x = block(x, src_mask=mask, is_causal=True)
            return self.head(self.norm(x)).flatten(0, 1)

    generator = torch.Generator().manual_seed(0)

    def sequences(_step):
        start = torch.randint(0, vocabulary, (16, 1), generator=generator)
        rows = (start + 3 * torch.arange(length + 1)) % vocabulary
        return rows[:, :-1], rows[:, 1:].flatten()

    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 40))
    run = train(model, optimizer, sequences, 150, scheduler=scheduler, clip=0.2)
    assert run.recorded[0].clipped
    assert_healthy(run)


def test_moment_of_scaler_calibration():
    """R37: an initial scale of 2**24 overflows a few times; at most a note."""
    model = mlp(3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder, draw = Recorder(model, optimizer), digits()
    scale = 2.0**24
    for step in range(60):
        optimizer.zero_grad()
        x, y = draw(step)
        loss = CE(model(x), y)
        loss.backward()
        overflow = step < 6
        if overflow:
            model[0].weight.grad[0, 0] = math.inf
        recorder.step(loss, skipped=overflow, skip_reason="overflow" if overflow else None, loss_scale=scale)
        scale = scale / 2 if overflow else scale
    assert_healthy(recorder.run)
    assert [f.variant for f in diagnose(recorder.run)] == ["calibration"]
