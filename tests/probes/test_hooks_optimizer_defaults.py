"""What is kept of an optimizer's settings: what can be written down, Adam's betas among it."""

from __future__ import annotations

import json

import torch
from torch import nn

import gradmedic as gm
from gradmedic.probes.membership import _plain


def test_numbers_flags_texts_and_short_sequences_of_numbers():
    given = {
        "lr": 0.1,
        "betas": (0.9, 0.999),
        "eps": 1e-8,
        "foreach": None,
        "amsgrad": False,
        "name": "x",
        "ns_coefficients": (3.4, -4.7, 2.0),
        "levels": list(range(5)),
        "mixed": (0.9, "a"),
        "rate": torch.tensor(0.1),
    }
    kept = _plain(given)
    assert kept == {
        "lr": 0.1,
        "betas": [0.9, 0.999],
        "eps": 1e-8,
        "amsgrad": False,
        "name": "x",
        "ns_coefficients": [3.4, -4.7, 2.0],
    }
    assert json.loads(json.dumps(kept)) == kept


def test_betas_reach_the_facts_of_a_watched_run():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.3)
    with gm.watch(model, optimizer, strict=True) as monitor:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    facts = [event for event in monitor.run.events if event["kind"] == "facts"][-1]["facts"]
    defaults = next(iter(facts["optimizers"].values()))["defaults"]
    assert (defaults["betas"], defaults["weight_decay"]) == ([0.9, 0.95], 0.3)
