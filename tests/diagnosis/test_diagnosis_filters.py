"""GM308 degenerate-filters: dead and repeated filters, with harm and without."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from diagnosis_frames import FakeRun, digits, frames
from diagnosis_judging import judge
from torch import nn

import gradmedic as gm

FALLING = [2.0 - i / 1000 for i in range(300)]
FLAT = [2.0] * 300


def run_of(dead, duplicates, curve, module="conv2") -> FakeRun:
    made = frames(curve)
    for frame in made[::50]:
        extra = {"filters": 32.0, "median_norm": 1.0, "effective_rank": 9.0}
        extra |= {"dead_share": dead, "duplicate_share": duplicates}
        frame.modules = ({"module": module, "what": "filters", "call": 0, "leaf": "weight", "extra": extra},)
    return FakeRun(made, [])


@pytest.mark.parametrize(
    ("dead", "duplicates", "curve", "expected"),
    [
        (0.2, 0.2, FLAT, []),
        (0.5, 0.0, FLAT, [("", "warning")]),
        (0.5, 0.0, FALLING, [("", "info")]),  # pruned on purpose
        (0.0, 0.5, FLAT, [("duplicates", "warning")]),
        (0.5, 0.5, FLAT, [("", "warning"), ("duplicates", "warning")]),
    ],
)
def test_shares(dead, duplicates, curve, expected):
    found = judge(run_of(dead, duplicates, curve), "GM308")
    assert sorted((f.variant, f.severity) for f in found) == expected
    assert all(f.where == ("conv2",) for f in found)


def net(spoil=lambda model: None):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(256, 10),
    )  # fmt: skip
    with torch.no_grad():
        spoil(model)
    return model


def kill(model):
    model[3].weight[:10] *= 1e-6
    model[3].bias[:10] = -1.0


def repeat(model):
    model[3].weight[1:12] = model[3].weight[:1]


@pytest.mark.parametrize(
    ("spoil", "variant"), [(kill, ""), (repeat, "duplicates"), (lambda model: None, None)], ids=["dead", "alike", "ok"]
)
def test_real_convolutions(spoil, variant):
    torch.set_num_threads(1)
    model = net(spoil)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)  # nothing is learned, so that there is harm
    with gm.watch(model, optimizer, strict=True, rules=["GM308"], modules_every=20) as monitor:
        for step in range(60):
            x, y = digits()(step)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert [(f.variant, f.severity, f.where) for f in monitor.findings] == (
        [] if variant is None else [(variant, "warning", ("3",))]
    )
