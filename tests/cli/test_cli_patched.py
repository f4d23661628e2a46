"""A script that puts its own functions over torch's keeps them."""

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


def test_patches_of_the_script_stay(gm_fork, python_fork, tmp_path):
    (tmp_path / "patched.py").write_text(SCRIPT)
    watched = gm_fork("run", "--quiet", "--no-record", "patched.py")
    plain = python_fork("patched.py")
    assert watched.returncode == plain.returncode == 0, watched.stderr + plain.stderr
    assert watched.stdout == plain.stdout
    assert b"True True" in plain.stdout
