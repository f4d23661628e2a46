"""`gradmedic run` of a script whose weights are divided: before its first step nothing of the model is known."""

from __future__ import annotations

from rank_pool import run_on_ranks

import gradmedic as gm
from gradmedic.cli import main

SCRIPT = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(6):
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(folder: str, script: str) -> int:
    return main(["run", "--quiet", "--record", folder, script])


def test_weights_that_are_gathered_for_a_pass_and_taken_away_again(tmp_path):
    script, folder = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT)
    assert run_on_ranks(run, str(folder), str(script)) == [0, 0]
    recorded = gm.open_run(folder)
    assert [len(recorded.series("grad_norm", rank=rank)) for rank in (0, 1)] == [6, 6]
    assert len(recorded.matrix("norm")[1]) == 4
