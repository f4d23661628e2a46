"""Probes of modules: outputs and output gradients on sampled steps, and no trace of them in between."""

from __future__ import annotations

import copy
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import gradmedic as gm


class Net(nn.Module):
    """A convolution, an activation that works in place, and a head."""

    def __init__(self, dead: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.act = nn.ReLU(inplace=True)
        self.mid = nn.Linear(4 * 16, 6)
        self.tanh = nn.Tanh()
        self.head = nn.Linear(6, 3)
        if dead:
            with torch.no_grad():
                assert self.conv.bias is not None
                self.conv.bias[:3] = -100.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act(self.conv(x)).flatten(1)
        result: torch.Tensor = self.head(self.tanh(self.mid(hidden)))
        return result


def _batch(step: int = 0) -> torch.Tensor:
    return torch.randn(8, 1, 4, 4, generator=torch.Generator().manual_seed(step))


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int = 0) -> None:
    optimizer.zero_grad()
    (model(_batch(step)) ** 2).sum().backward()
    optimizer.step()


def _hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._backward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def _rows(frame: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["module"], row["what"]): dict(row) for row in frame.modules}


@pytest.mark.parametrize("backend", ["auto", "torch"])
def test_outputs_and_their_gradients_are_what_autograd_has(backend: str) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, backend=backend, strict=True) as monitor:
        _step(model, optimizer)
        rows = _rows(monitor.latest)
    outputs: dict[str, torch.Tensor] = {}
    twin = Net()
    twin.act = nn.ReLU()
    x = _batch()
    for name in ("conv", "act", "mid", "tanh", "head"):
        x = getattr(twin, name)(x.flatten(1) if name == "mid" else x)
        x.retain_grad()
        outputs[name] = x
    (x**2).sum().backward()
    for name, output in outputs.items():
        for what, expected in (("output", output), ("grad_output", output.grad)):
            assert expected is not None
            row, exact = rows[(name, what)], expected.detach().double()
            assert row["numel"] == exact.numel()
            assert row["norm"] == pytest.approx(float(exact.norm()), rel=1e-5)
            assert row["rms"] == pytest.approx(float(exact.square().mean().sqrt()), rel=1e-5)
            assert row["mean"] == pytest.approx(float(exact.mean()), rel=1e-4, abs=1e-7)
            assert row["max_abs"] == pytest.approx(float(exact.abs().max()), rel=1e-6)
            assert row["zero_count"] == int((exact == 0).sum())
    assert rows[("tanh", "output")]["saturated_frac"] == pytest.approx(
        float((outputs["tanh"].abs() >= 0.97).double().mean())
    )


def test_hooks_are_there_on_sampled_steps_only() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sampled = []
    with gm.watch(model, optimizer, modules_every=4, strict=True) as monitor:
        for step in range(10):
            before = _hooks(model)
            _step(model, optimizer, step)
            frame = monitor.latest
            assert frame is not None
            if frame.modules:
                sampled.append(step)
            if step > 3:  # the look at the wiring is over
                assert (before > 0) == (step % 4 == 0)
    assert sampled == [0, 1, 2, 4, 8]
    assert _hooks(model) == 0


def test_the_step_after_trouble_is_sampled() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, modules_every=1000, strict=True) as monitor:
        sampled = []
        for step in range(14):
            optimizer.zero_grad()
            factor = float("nan") if step == 10 else 1.0
            (model(_batch(step)).sum() * factor).backward()
            optimizer.step()
            frame = monitor.latest
            if frame is not None and frame.modules:
                sampled.append(step)
    assert sampled[:3] == [0, 1, 2]
    assert sampled[3] == 10  # its own graph, while that is still there
    assert sampled[4] in (11, 12)


def test_probing_changes_no_bit() -> None:
    weights = []
    for modules in (None, "auto"):
        torch.manual_seed(1)
        model = nn.Sequential(Net(), nn.Dropout(0.4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with gm.watch(model, optimizer, modules=modules, modules_every=1, strict=True):
            for step in range(12):
                _step(model, optimizer, step)
        weights.append([parameter.detach().clone() for parameter in model.parameters()])
        weights[-1].append(torch.rand(3))
    assert all(torch.equal(one, two) for one, two in zip(*weights, strict=True))


def test_dead_units_are_counted_over_all_samples() -> None:
    model = Net(dead=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, modules_every=1, strict=True) as monitor:
        for step in range(5):
            _step(model, optimizer, step)
        rows = _rows(monitor.latest)
    assert (rows[("act", "output")]["units"], rows[("act", "output")]["inactive_units"]) == (4, 3)
    assert rows[("conv", "grad_output")]["inactive_units"] == 3
    assert rows[("act", "output")]["batches"] == 5
    assert rows[("mid", "grad_output")]["inactive_units"] == 0


def test_record_and_frames_hold_the_rows(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, record=tmp_path / "run", modules_every=3, strict=True) as monitor:
        frames = []
        for step in range(8):
            _step(model, optimizer, step)
            frames.append(monitor.latest)
    run = gm.open_run(tmp_path / "run")
    read = list(run.frames())
    assert [bool(frame.modules) for frame in read] == [step in (0, 1, 2, 3, 6) for step in range(8)]
    for frame, again in zip(frames, read, strict=True):
        assert frame is not None
        for row, other in zip(frame.modules, again.modules, strict=True):
            assert row.keys() == other.keys()
            for key, value in row.items():
                assert value == other[key] or value == pytest.approx(other[key]), key
    assert {"output", "grad_output", "activation"} <= set(run.modules["what"].to_pylist())


@pytest.mark.parametrize("patterns", [["conv"], ["t*", "head"]])
def test_patterns_choose(patterns: list[str]) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, modules=patterns, strict=True) as monitor:
        _step(model, optimizer)
        rows = monitor.latest.modules  # type: ignore[union-attr]
        seen = {row["module"] for row in rows if row["what"] in ("output", "grad_output")}
    assert seen == ({"conv"} if patterns == ["conv"] else {"tanh", "head"})


@pytest.mark.parametrize(
    ("modules", "words"),
    [(["cnov"], "'cnov' matches no parameter and no module; near names: conv"), (3, "expected"), ([1], "expected")],
)
def test_bad_patterns_are_refused(modules: Any, words: str) -> None:
    model = Net()
    with pytest.raises(gm.InputError, match=words):
        gm.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), modules=modules)


class Odd(nn.Module):
    """Returns whatever users return."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.none, self.ints, self.empty, self.own = Give(None), Give(torch.arange(3)), Give(torch.zeros(0, 3)), Give(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in (self.none, self.ints, self.empty, self.own):
            part(x)
        return x * self.weight


class Give(nn.Module):
    """Returns what it was made with."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def forward(self, _x: torch.Tensor) -> Any:
        return {"a": [self.value, True], "b": self.value}


def test_outputs_without_tensors_integers_and_empty_ones_are_passed_over() -> None:
    model = Odd()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, strict=True) as monitor:
        model(torch.randn(2, 3)).sum().backward()
        optimizer.step()
        assert monitor.latest is not None
        assert not monitor.latest.modules


@pytest.mark.parametrize("reentrant", [False, True])
def test_recompute_under_checkpointing_is_not_a_call_with_a_gradient_of_its_own(reentrant: bool) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with gm.watch(model, optimizer, strict=True) as monitor:
        x = _batch().requires_grad_()
        (checkpoint(model, x, use_reentrant=reentrant) ** 2).sum().backward()
        optimizer.step()
        frame = monitor.latest
    assert frame is not None
    gradients = [row for row in frame.modules if row["what"] == "grad_output" and row["module"] == "head"]
    assert len(gradients) == 1
    with gm.watch(model, optimizer, strict=True) as monitor:
        _step(model, optimizer)
        plain = _rows(monitor.latest)
    assert gradients[0]["norm"] == pytest.approx(plain[("head", "grad_output")]["norm"], rel=1e-5)


def test_accumulation_and_shared_modules_count_calls() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for step in range(3):
            (model(_batch(step)) ** 2).sum().backward()
        optimizer.step()
        frame = monitor.latest
    assert frame is not None
    assert sorted(r["call"] for r in frame.modules if (r["module"], r["what"]) == ("head", "output")) == [0, 1, 2]


def test_copies_pickles_and_evaluation_are_left_alone() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            (twin(_batch()) ** 2).sum().backward()
        with torch.no_grad():
            model(_batch())
        _step(model, optimizer)
        frame = monitor.latest
        assert frame is not None
        assert {row["call"] for row in frame.modules} == {0}
        with monitor.paused():
            assert _hooks(model) == 0
            torch.jit.trace(model, _batch())


def test_attention_and_recurrent_modules_are_probed() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    lstm = nn.LSTM(8, 8, batch_first=True)
    optimizer = torch.optim.SGD([*layer.parameters(), *lstm.parameters()], lr=0.01)
    with gm.watch({"layer": layer, "lstm": lstm}, optimizer, strict=True) as monitor:
        hidden, _ = lstm(torch.randn(3, 5, 8))
        layer(hidden).sum().backward()
        optimizer.step()
        rows = _rows(monitor.latest)
    assert ("layer.self_attn", "output") in rows
    assert ("layer.self_attn", "grad_output") in rows
    assert ("lstm", "output") in rows
    assert ("lstm", "grad_output") in rows


def test_a_compiled_model_is_not_touched() -> None:
    model = Net()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(compiled, optimizer, strict=True) as monitor:
        _step(compiled, optimizer)
        frame = monitor.latest
    assert frame is not None
    assert not {row["what"] for row in frame.modules} & {"output", "grad_output"}


def test_per_sample_gradients_go_on() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss(parameters: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(model, parameters, (x.unsqueeze(0),)).sum()
        return result

    model.act = nn.ReLU()
    with gm.watch(model, optimizer, strict=True):
        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(dict(model.named_parameters()), _batch())
        assert gradients["head.weight"].shape == (8, 3, 6)
        _step(model, optimizer)


@pytest.mark.parametrize("whole", [False, True])
def test_scripted_modules_are_left_alone(whole):
    """TorchScript modules take no hooks: they are not probed, and everything else is."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        inner = torch.jit.script(nn.Sequential(nn.Linear(6, 8), nn.ReLU()))
    model = inner if whole else nn.Sequential(inner, nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for _ in range(25):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).square().mean().backward()
            optimizer.step()
    rows = [row["module"] for frame in monitor.run.frames() for row in frame.modules if row["what"] == "output"]
    assert set(rows) == (set() if whole else {"1"})
    assert [found.code for found in monitor.diagnose() if found.severity != "info"] == []


def test_nested_tensors_are_left_alone():
    layer = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with gm.watch(layer, optimizer, strict=True) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            batch = torch.nested.nested_tensor([torch.randn(2, 6), torch.randn(4, 6)])
            torch.nested.to_padded_tensor(layer(batch), 0.0).square().mean().backward()
            optimizer.step()
    assert [len(frame.tensors) for frame in monitor.run.frames()] == [2, 2, 2]
    assert monitor.run.events[0]["facts"]["inputs"] == []
