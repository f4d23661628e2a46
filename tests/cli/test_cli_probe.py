"""`gradmedic run --probe`: an unmodified script is probed, and trains as it does without."""

from __future__ import annotations

import os
import subprocess
import sys

import gradmedic as gm

SCRIPT = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
for step in range(8):
    x = torch.randn(16, 6)
    loss = nn.functional.cross_entropy(net(x), (x[:, 0] > 0).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sum(p.double().sum().item() for p in net.parameters()), torch.rand(1).item())
"""


def run(*words: str, folder):
    script = folder / "train.py"
    script.write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, *words, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GRADMEDIC_LANG": "en"},
        check=True,
    )


def test_a_script_is_probed_and_trains_as_without(tmp_path):
    plain = run(folder=tmp_path)
    probed = run("-m", "gradmedic", "run", "--probe", "--record", str(tmp_path / "run"), folder=tmp_path)
    assert probed.stdout == plain.stdout
    assert "probes: the step lowers" in " ".join(probed.stderr.split())
    events = [event for event in gm.open_run(tmp_path / "run").events if event["kind"] == "probe"]
    assert [(event["step"], event["probe"]) for event in events] == [
        *((1, name) for name in ("line", "batch", "input", "future")),
        *((7, name) for name in ("line", "input", "overfit")),
    ]
