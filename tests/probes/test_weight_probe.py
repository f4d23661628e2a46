"""Weights as the graph shows them: found in any style, in the right layout, named when the step ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradmedic as gm
from gradmedic.probes.graph import walk
from gradmedic.probes.weight_layers import Layer, layers
from gradmedic.probes.weight_stats import weight_numbers
from gradmedic.probes.weights import WeightProbe


def found(loss: torch.Tensor) -> list[Layer]:
    return list(layers(walk([loss])))


def raising(_part: str, error: Exception) -> None:
    raise error


def rows_of(frame: Any, what: str) -> dict[str, dict[str, float]]:
    return {row["module"]: dict(row["extra"]) for row in frame.modules if row["what"] == what}


def test_linear_layers_are_found_as_outputs_by_inputs() -> None:
    x = torch.randn(5, 7)
    weight = torch.randn(3, 7, requires_grad=True)
    for product in (x @ weight.t(), F.linear(x, weight), F.linear(x, weight, torch.zeros(3, requires_grad=True))):
        [layer] = found(product.sum())
        assert layer.leaf is weight
        assert torch.equal(layer.weight, weight.detach())
        assert layer.given is not None
        assert torch.equal(layer.given, x)
        assert not layer.hidden
    stored_otherwise = torch.randn(7, 3, requires_grad=True)
    [layer] = found((x @ stored_otherwise).sum())
    assert torch.equal(layer.weight, stored_otherwise.detach().t())


def test_batches_of_sequences_and_autocast() -> None:
    linear = nn.Linear(7, 3)
    [layer] = found(linear(torch.randn(2, 4, 7)).sum())
    assert layer.leaf is linear.weight
    with torch.autocast("cpu", torch.bfloat16):
        [layer] = found(linear(torch.randn(4, 7)).float().sum())
    assert layer.leaf is linear.weight
    numbers = weight_numbers(layer)
    assert float(numbers["output_rms"]) > 0


def test_convolutions_and_transposed_ones() -> None:
    x = torch.randn(2, 4, 6, 6)
    for module, outputs, inputs in (
        (nn.Conv2d(4, 6, 3), 6, 4),
        (nn.Conv2d(4, 8, 3, groups=2), 8, 2),
        (nn.ConvTranspose2d(4, 6, 3), 6, 4),
    ):
        [layer] = found(module(x).sum())
        numbers = weight_numbers(layer)
        assert layer.convolution
        assert (numbers["outputs"], numbers["inputs"]) == (outputs, inputs)
        assert numbers["fan_in"] == inputs * 9


def test_computed_weights_are_no_leaves() -> None:
    """Masked, reparametrised and scaled weights are not what a scheme has drawn."""
    weight, mask = torch.randn(3, 7, requires_grad=True), torch.ones(3, 7)
    assert found(F.linear(torch.randn(2, 7), weight * mask).sum()) == []


def test_a_weight_that_is_used_often_counts_once_and_hidden_inputs_are_told_from_data() -> None:
    cell, head = nn.Linear(4, 4), nn.Linear(4, 2)
    state = torch.zeros(3, 4)
    for _ in range(5):
        state = torch.tanh(cell(state))
    first, last = found(head(state).sum())
    assert (first.leaf is cell.weight, last.leaf is head.weight) == (True, True)
    assert (first.hidden, last.hidden) == (False, True)


def test_numbers_follow_their_definitions() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(6, 4).double()
    with torch.no_grad():
        linear.weight[:] = torch.arange(24.0, dtype=torch.float64).reshape(4, 6) / 10
    x = torch.randn(10, 6, dtype=torch.float64) + 3
    [layer] = found(linear(x).sum())
    numbers = {key: float(value) for key, value in weight_numbers(layer).items()}
    weight = linear.weight.detach()
    assert numbers["rms"] == pytest.approx(float((weight**2).mean().sqrt()))
    distance = torch.tensor([0.0, 0.6, 1.2, 1.8], dtype=torch.float64)  # every row is the first plus a constant
    assert numbers["row_spread"] == pytest.approx(float((distance**2).mean().sqrt()) / 2.3)
    assert numbers["input_rms"] == pytest.approx(float((x**2).mean().sqrt()), rel=1e-6)
    assert numbers["input_spread"] == pytest.approx(float(x.var(0).mean().sqrt()), rel=1e-6)
    assert numbers["output_rms"] == pytest.approx(float((linear(x).detach() ** 2).mean().sqrt()), rel=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -3.0])
def test_constant_weights_have_no_spread(value: float) -> None:
    linear = nn.Linear(300, 600)
    nn.init.constant_(linear.weight, value)
    numbers = weight_numbers(found(linear(torch.randn(2, 300)).sum())[0])
    assert (float(numbers["row_spread"]), float(numbers["column_spread"])) == (0.0, 0.0)


def test_rows_are_named_when_the_model_is_known_at_last() -> None:
    """`gradmedic run` finds the model when its optimizer first steps, after the first backward pass."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    names: dict[int, tuple[str, str]] = {}
    probe = WeightProbe(lambda tensor: names.get(id(tensor)), raising)
    loss = model(torch.randn(3, 4)).sum()
    probe.sample([loss], first=True)
    names.update({id(p): (name, name.partition(".")[0]) for name, p in model.named_parameters()})
    taken = probe.take()
    assert [(row.module, row.what, row.leaf) for row in taken] == [
        ("0", "weights", "weight"),
        ("2", "weights", "weight"),
    ]
    assert [row.extra["order"] for row in taken] == [0.0, 1.0]
    assert probe.take() == []


def test_unknown_tensors_are_left_out_and_a_weight_counts_once_a_step() -> None:
    linear = nn.Linear(4, 2)
    probe = WeightProbe(lambda tensor: ("weight", "") if tensor is linear.weight else None, raising)
    for _ in range(2):
        probe.sample([linear(torch.randn(3, 4)).sum() + nn.Linear(2, 2)(torch.randn(1, 2)).sum()], first=True)
    assert [row.module for row in probe.take()] == ["weight"]


def test_only_the_first_steps_have_rows_of_weights() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 4, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    seen: dict[int, set[str]] = {}
    with gm.watch(model, optimizer, strict=True, rules=[], modules_every=5) as monitor:
        for step in range(11):
            optimizer.zero_grad()
            model(torch.randn(4, 2, 4, 4)).square().mean().backward()
            optimizer.step()
            seen[step] = {row["what"] for row in monitor.latest.modules} & {"weights", "filters"}
    assert {step for step, kinds in seen.items() if "weights" in kinds} == {0, 2}
    assert {step for step, kinds in seen.items() if "filters" in kinds} == {0, 1, 2, 5, 10}


def test_weights_are_measured_before_the_update() -> None:
    model = nn.Linear(4, 3)
    before = float((model.weight.detach() ** 2).mean().sqrt())
    optimizer = torch.optim.SGD(model.parameters(), 10.0)
    with gm.watch(model, optimizer, strict=True, rules=[]) as monitor:
        model(torch.randn(4, 4)).square().sum().backward()
        optimizer.step()
        rows = rows_of(monitor.latest, "weights")
    assert rows["weight"]["rms"] == pytest.approx(before, rel=1e-6)


def test_what_cannot_be_read_is_left_alone() -> None:
    linear = nn.Linear(4, 4)
    probe = WeightProbe(lambda tensor: ("weight", "m"), raising)
    recomputed: list[int] = []

    def block(x: torch.Tensor) -> torch.Tensor:
        recomputed.append(1)
        return torch.tanh(linear(x))

    loss = checkpoint(block, torch.randn(3, 4, requires_grad=True), use_reentrant=False).sum()
    probe.sample([loss], first=True)
    [row] = probe.take()
    assert len(recomputed) == 1  # a checkpointed region was not computed again for our sake
    assert row.extra.keys().isdisjoint({"input_rms", "input_spread", "output_rms"})
    meta = nn.Linear(4, 4, device="meta")
    probe.sample([meta(torch.randn(3, 4, device="meta")).sum()], first=True)
    torch.func.vmap(lambda x: (probe.sample([linear(x).sum()], first=True), linear(x))[1])(torch.randn(2, 4))
    assert probe.take() == []


def test_watching_leaves_the_run_as_it_is() -> None:
    def train(watched: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(2, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(),
                              nn.Linear(64, 3))  # fmt: skip
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        monitor = gm.watch(model, optimizer, strict=True, modules_every=2, rules=[]) if watched else None
        for _ in range(6):
            optimizer.zero_grad()
            model(torch.randn(4, 2, 4, 4)).square().mean().backward()
            optimizer.step()
        if monitor is not None:
            monitor.close()
        return [p.detach() for p in (*model.parameters(), *model.buffers())], torch.get_rng_state()

    (plain, rng), (watched, rng_watched) = train(False), train(True)
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    assert torch.equal(rng, rng_watched)
