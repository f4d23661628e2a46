"""An installation without the compiled kernel: what it can do, and what it says it cannot."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch
from stats_cases import assert_close

import gradmedic as gm
from gradmedic.errors import InputError
from gradmedic.stats import gradient_stats, native, native_available

#: As if it had been installed where no compiler is.
HIDDEN = "import sys\nsys.modules['gradmedic.stats._native'] = None\n"


@pytest.fixture
def no_kernel(monkeypatch):
    monkeypatch.setattr(native, "_native", None)


def test_the_kernel_is_there_where_a_compiler_is():
    """So that the tests of the kernel do not go missing unseen; without a compiler, the other tests are enough."""
    assert native_available() or not (shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"))


def test_auto_uses_torch_and_native_says_how_to_build_it(no_kernel):
    xs = [torch.randn(500), torch.zeros(2, 3).t()]
    assert not native_available()
    assert_close(gradient_stats(xs, histogram=True), gradient_stats(xs, histogram=True, backend="reference"), 1e-6)
    with pytest.raises(InputError, match="build_ext --inplace"):
        gradient_stats(xs, backend="native")
    with pytest.raises(InputError, match="install a C compiler and reinstall"):
        gm.watch(torch.nn.Linear(2, 1), backend="native")


def test_the_package_imports_and_works_without_it_and_the_environments_description_says_so():
    code = (
        "import torch\n"
        "from gradmedic.stats import gradient_stats, native_available\n"
        "print(native_available(), gradient_stats([torch.tensor([3., 4.])]).norm.item())\n"
        "from gradmedic.cli import main\nmain(['env', '--json'])\n"
    )
    done = subprocess.run([sys.executable, "-c", HIDDEN + code], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    said, _, facts = done.stdout.partition("\n")
    assert said.split() == ["False", "5.0"]
    assert json.loads(facts)["native_kernel"] is False


def test_a_run_is_watched_recorded_and_judged_without_it(no_kernel, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, record=tmp_path / "run", strict=True) as monitor:
        for step in range(6):
            inputs = torch.full((3, 4), float("nan") if step == 4 else 1.0)
            model(inputs).square().mean().backward()
            norm = model.weight.grad.norm().item()
            optimizer.step()
            optimizer.zero_grad()
            if step < 4:
                assert monitor.latest.tensors["weight"].norm == pytest.approx(norm, rel=1e-6)
    assert "GM201" in {finding.code for finding in gm.diagnose(gm.open_run(tmp_path / "run"))}
