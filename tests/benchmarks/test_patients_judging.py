"""The patients benchmark's judgement of a record: what was found, and at which step it could first be said."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.patients.judging import MAX_PLACES, compact, first_said, judgement, replayed
from benchmarks.patients.peers import PEERS
from benchmarks.patients.peers.trace import Trace

import gradmedic as gm
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.frame import Frame


class Recording:
    """Frames in memory, with an alarm above a norm of 10."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self._frames = frames

    @property
    def meta(self) -> Mapping[str, Any]:
        return {"limits": 10.0}

    @property
    def events(self) -> Sequence[dict[str, Any]]:
        return []

    def frames(self) -> Iterable[Frame]:
        return self._frames


def test_a_finding_is_first_said_at_the_frame_that_brings_it() -> None:
    norms = [1.0] * 7 + [50.0] + [1.0] * 7
    frames = [Frame(step=step, optimizer="SGD", time=step, loss=1.0, grad_norm=norm) for step, norm in enumerate(norms)]
    findings, made = replayed(Recording(frames))
    (alarm,) = (each for each in findings if each.code == "GM412")
    assert first_said(alarm, made) == 7
    assert compact(alarm, made)["made"] == 7


def test_an_escalated_finding_counts_from_its_first_warning() -> None:
    def made(step: int, severity: Any, optimizer: str = "SGD", code: str = "GM401") -> tuple[int, Finding]:
        return step, Finding(code, "name", severity, 0.5, 3, optimizer)

    history = [
        made(5, "info"),
        made(9, "warning"),
        made(20, "error"),
        made(2, "error", "Adam"),
        made(1, "error", code="GM1"),
    ]
    assert first_said(history[2][1], history) == 9
    assert first_said(history[0][1], history) == 5
    assert first_said(made(0, "error", "RMSprop")[1], history) == 3  # not known: its own step


def test_what_is_kept_of_a_finding_is_strict_json_and_bounded() -> None:
    effect = Finding("GM302", "effect", "error", 0.5, 4)
    cause = Finding(
        "GM401", "cause", "error", 0.9, 3, "SGD", tuple(f"layer{at}" for at in range(100)),
        (Evidence("loss", float("nan"), 2.0),), folded=(effect,),
    )  # fmt: skip
    kept = compact(cause, [(6, cause)])
    assert json.loads(json.dumps(kept, allow_nan=False)) == kept
    assert len(kept["where"]) == MAX_PLACES
    assert kept["evidence"] == [["loss", "NaN", 2.0]]
    assert kept["folded"] == [{"code": "GM302", "severity": "error", "step": 4}]


def test_a_record_is_judged_by_all(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = torch.randn(32, 4)
    with gm.watch(model, optimizer, record=tmp_path / "run"):
        for _ in range(30):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), x[:, :1]).backward()
            optimizer.step()
    run = gm.open_run(tmp_path / "run")
    said = judgement(run)
    assert said["steps"] == 30
    assert 0 < said["overhead"] < 1
    assert said["problems"] == []
    trace = Trace.of(run)
    assert trace.names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert [trace.names[place] for place in trace.kernels()] == ["0.weight", "2.weight"]
    assert trace.tensors["numel"][0].tolist() == [32, 8, 8, 1]
    assert trace.skill()[1][-1] > 0
    for peer in PEERS:
        json.dumps([verdict.to_json() for verdict in peer.judge(trace)], allow_nan=False)
