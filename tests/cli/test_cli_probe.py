"""`gradmedic run --probe`: an unmodified script is probed, and trains as it does without."""

from __future__ import annotations

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


def test_a_script_is_probed_and_trains_as_without(gm_fork, python_fork, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    plain = python_fork("train.py")
    probed = gm_fork("run", "--probe", "--lang", "en", "--record", "run", "train.py")
    assert (probed.returncode, plain.returncode) == (0, 0), probed.stderr + plain.stderr
    assert probed.stdout == plain.stdout
    assert b"probes: the step lowers" in b" ".join(probed.stderr.split())
    events = [event for event in gm.open_run(tmp_path / "run").events if event["kind"] == "probe"]
    assert [(event["step"], event["probe"]) for event in events] == [
        *((1, name) for name in ("line", "batch", "input", "future")),
        *((7, name) for name in ("line", "input", "overfit")),
    ]
