"""A script that puts its own functions over torch's keeps them."""

import subprocess
import sys

SCRIPT = """
import torch
calls = []
init = torch.optim.Optimizer.__init__
def counted_init(self, *args, **kwargs):
    calls.append("init")
    init(self, *args, **kwargs)
torch.optim.Optimizer.__init__ = counted_init
backward = torch.Tensor.backward
def doubled(self, *args, **kwargs):
    calls.append("backward")
    return backward(self * 2, *args, **kwargs)
torch.Tensor.backward = doubled
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
for _ in range(2):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(4, 2)).pow(2).mean().backward()
    optimizer.step()
print(calls, model.weight.tolist(), torch.Tensor.backward is doubled, torch.optim.Optimizer.__init__ is counted_init)
"""


def test_patches_of_the_script_stay(tmp_path):
    script = tmp_path / "patched.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "gradmedic", "run", "--quiet", "--no-record", str(script)]
    watched = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    plain = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert watched.stdout == plain.stdout
    assert "True True" in plain.stdout
