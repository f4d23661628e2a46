"""Importing gradmedic does nothing."""

from __future__ import annotations

import json
import subprocess
import sys

IMPORT = """
import json, signal, sys, threading
import torch, torch._dynamo, numpy, pyarrow, pyarrow.ipc

FORBIDDEN = {"pandas", "matplotlib", "tensorboard", "wandb", "lightning", "pytorch_lightning", "transformers",
             "accelerate", "deepspeed", "sklearn", "IPython", "mlflow", "tensorflow", "jax", "polars", "scipy"}
asked, written = set(), []

class Spy:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            asked.add(name)
        return None

def audit(event, args):
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        written.append(str(args[0]))

handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
threads = len(__import__("os").listdir("/proc/self/task"))
sys.dont_write_bytecode = True
sys.meta_path.insert(0, Spy())
sys.addaudithook(audit)
import gradmedic as gm
from gradmedic import torch_hooks
state = {
    "threads": len(__import__("os").listdir("/proc/self/task")) - threads,
    "python threads": threading.active_count(),
    "handlers": {n: signal.getsignal(n) for n in signal.valid_signals()} == handlers,
    "written": list(written),
    "listeners": len(torch_hooks.attached()),
    "asked": sorted(asked),
}
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with gm.watch(model, optimizer, record=sys.argv[1], strict=True) as monitor:
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.ones(4, 2)).sum().backward()
        optimizer.step()
monitor.diagnose(), monitor.run.matrix("norm"), gm.open_run(sys.argv[1]).steps
state["asked later"] = sorted(asked)
state["handlers later"] = {n: signal.getsignal(n) for n in signal.valid_signals()} == handlers
print(json.dumps(state))
"""


def test_import_does_nothing(tmp_path):
    """R78: an import starts no thread, writes no file, sets no signal handler, and asks for no optional framework."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, str(tmp_path / "run")], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    state = json.loads(done.stdout.splitlines()[-1])
    assert state == {
        "threads": 0,
        "python threads": 1,
        "handlers": True,
        "written": [],
        "listeners": 0,
        "asked": [],
        "asked later": [],
        "handlers later": True,
    }
