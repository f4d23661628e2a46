"""Parameters without a gradient: each reason is a verdict of its own, with names, and needs several steps."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gradmedic as gm
from hooks_training import batches
from hooks_training import single_thread as single_thread


class Reasons(nn.Module):
    """One part for each reason, beside a part that trains."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, 4)
        self.unused = nn.Linear(16, 16)
        self.detached = nn.Linear(16, 4)
        self.sometimes = nn.Linear(16, 4)
        self.frozen = nn.Linear(16, 4).requires_grad_(False)
        self.zero = nn.Linear(16, 4)
        self.bypassed = nn.Module()
        self.bypassed.bias = self.head.bias

    def forward(self, x, step):
        hidden = self.body(x).relu()
        out = self.head(hidden) + self.frozen(hidden) + 0.0 * self.zero(hidden)
        out = out + self.detached(hidden).detach()
        return out + self.sometimes(hidden) if step % 3 == 0 else out


@pytest.fixture(scope="module")
def run():
    torch.manual_seed(0)
    model = Reasons()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    early = None
    with gm.watch(model, optimizer, strict=True) as monitor:
        for step, (x, y) in enumerate(batches(260)):
            optimizer.zero_grad()
            F.cross_entropy(model(x, step), y).backward()
            optimizer.step()
            if step == 4:
                early = [f for f in monitor.diagnose() if f.code in ("GM101", "GM102")]
    return monitor, early


def verdicts(monitor) -> dict[str, set[tuple[str, str]]]:
    found: dict[str, set[tuple[str, str]]] = {}
    for finding in monitor.diagnose():
        for each in (finding, *finding.folded):
            for name in each.where:
                found.setdefault(name, set()).add((each.code, each.variant))
    return found


def test_five_reasons_are_five_verdicts(run):
    """R73: unused, detached, conditional, frozen, tied and exactly zero are told apart, by name."""
    monitor, _ = run
    found = verdicts(monitor)
    assert found["unused.weight"] == {("GM101", "never_called")}
    assert found["detached.weight"] == {("GM101", "branch")}
    assert found["zero.weight"] == {("GM101", "zero")}
    for name in ("sometimes.weight", "head.bias", "head.weight", "body.weight"):
        assert not {code for code, _ in found.get(name, ())} & {"GM101", "GM102"}
    assert {code for code, _ in found.get("frozen.weight", {("GM104", "")})} == {"GM104"}


def test_never_used_needs_several_steps(run):
    """R73: a handful of steps is not enough to call a parameter unused."""
    assert run[1] == []


def test_the_table_tells_none_from_zero(run):
    """R73: in the frame, a missing gradient is "none", a zero one is "seen" with all zeros."""
    table = run[0].latest.tensors
    assert table["unused.weight"].status == "none"
    assert table["zero.weight"].status == "seen"
    assert table["zero.weight"].zero_count == table["zero.weight"].numel
    assert "frozen.weight" not in table


def test_what_the_graph_says_is_in_the_facts(run):
    """R73: reachability, calls, ownership and freezing are recorded for every parameter."""
    facts = [event["facts"] for event in run[0].run.events if event["kind"] == "facts"][-1]["parameters"]
    assert (facts["unused.weight"]["reached"], facts["unused.weight"]["called"]) == (False, False)
    assert (facts["detached.weight"]["reached"], facts["detached.weight"]["called"]) == (False, True)
    assert facts["sometimes.weight"]["reached"] is True
    assert facts["frozen.weight"]["trainable"] is False
    assert facts["head.bias"]["aliases"] == ["bypassed.bias"]


def test_layers_behind_a_detach_are_a_cut_graph():
    """R73: everything before a detach is one finding, a cut graph, and not a list of unused layers."""
    torch.manual_seed(0)
    encoder, head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16)), nn.Linear(16, 4)
    model = nn.ModuleDict({"encoder": encoder, "head": head})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with gm.watch(model, optimizer, strict=True) as monitor:
        for x, y in batches(40):
            optimizer.zero_grad()
            F.cross_entropy(head(encoder(x).detach()), y).backward()
            optimizer.step()
    found = {finding.code: finding for finding in monitor.diagnose()}
    assert set(found["GM102"].where) == {"encoder.2", "head"}  # the edge at which it is cut
    assert "GM101" not in found
