"""GM205: bfloat16 and float16 weights that round updates away."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diagnosis_frames import FakeRun, Recorder, digits, fact, facts_event, frames, mlp, table

from gradmedic.diagnosis import diagnose
from gradmedic.facts import Facts

NAMES = ["a.weight", "b.weight"]


def rounded(unchanged, zeros=(0, 0), *, lr=1e-3, n=30, dtype="bfloat16", **optimizer) -> FakeRun:
    """Two tensors of 16 elements; `unchanged` may vary over steps: a pair, or a pair for each of them."""
    known = Facts(parameters={name: fact(name, dtype=dtype) for name in NAMES}, optimizers={"SGD": optimizer})
    made = frames(list(np.linspace(2, 1, n)), lr=lr)
    for step, frame in enumerate(made):
        share = unchanged[step] if isinstance(unchanged, list) else unchanged
        frame.tensors = table(
            {
                "norm": [1.0, 1.0],
                "update_norm": [1e-3, 1e-3],
                "unchanged_frac": share,
                "weight_norm": [4.0, 4.0],
                "zero_count": np.array(zeros),
            },
            NAMES,
        )
    return FakeRun(made, [facts_event(known)])


@pytest.mark.parametrize(("unchanged", "share"), [((0.9, 0.7), 80.0), ((1.0, 0.25), 62.5)])
def test_share_is_over_all_elements(unchanged, share):
    found = diagnose(rounded(unchanged))
    assert [(f.code, f.severity, f.step) for f in found] == [("GM205", "warning", 0)]
    assert found[0].params["share"] == pytest.approx(share)
    assert found[0].where == tuple(n for n, part in zip(NAMES, unchanged, strict=True) if part > 0.5)
    assert "bfloat16" in found[0].message


@pytest.mark.parametrize(
    "run",
    [
        rounded((0.5, 0.5)),  # half of them get through
        rounded((0.9, 0.9), dtype="float32"),
        rounded((0.9, 0.9), zeros=(14, 14)),  # of 16 elements 14 have no gradient, and 0.4 of 16 have stood still
        rounded((0.9, 0.9), n=9),
        rounded((0.9, 0.9), lr=0.0),
        rounded([(0.1, 0.1)] * 20 + [(0.99, 0.99)] * 20, n=40, lr=[1e-3] * 20 + [1e-5] * 20),  # a schedule's tail
        rounded([(0.99, 0.99)] * 20 + [(0.2, 0.2)] * 20, n=40, lr=[1e-6] * 20 + [1e-3] * 20),  # a warm-up
        rounded((0.9, 0.9), **{"class": "AdamW", "defaults": {"kahan_sum": True}}),
        rounded((0.9, 0.9), **{"class": "StochasticRoundingAdam", "defaults": {}}),
    ],
    ids=["half", "fp32", "sparse", "few", "zero_rate", "tail", "warm_up", "kahan", "stochastic"],
)
def test_nothing_is_said(run):
    assert "GM205" not in {f.code for f in diagnose(run)}


def test_settings_that_are_off_do_not_excuse():
    assert diagnose(rounded((0.9, 0.9), **{"class": "AdamW", "defaults": {"kahan_sum": False}}))[0].code == "GM205"


def trained(rate: float) -> FakeRun:
    torch.manual_seed(0)
    model = mlp(3).to(torch.bfloat16)
    recorder, draw = Recorder(model, torch.optim.AdamW(model.parameters(), rate)), digits()
    for step in range(40):
        recorder.optimizers["AdamW"].zero_grad()
        x, y = draw(step)
        loss = torch.nn.functional.cross_entropy(model(x.bfloat16()).float(), y)
        loss.backward()
        recorder.step(loss)
    return recorder.run


def test_real_bfloat16_weights():
    """Adam moves a weight by about its rate: 1e-6 is 2^-15 of a weight of 0.03; bfloat16's half-ulp is 2^-9."""
    found = [f for f in diagnose(trained(1e-6)) if f.severity != "info"]
    assert [f.code for f in found] == ["GM205"]
    assert found[0].params["share"] > 90
    assert [f for f in diagnose(trained(1e-2)) if f.severity != "info"] == []
