"""What an installed gradmedic must do, without pytest and without the source tree: `python smoke_installed.py`.

Run it with an interpreter that has gradmedic from a wheel or an sdist, in any folder but the repository. Options:
`--kernel yes|no` also demands that the native kernel is there, or is not.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

SCRIPT = """
import torch
torch.manual_seed(0)
x, y = torch.randn(64, 8), torch.randint(2, (64,))
x[5, 2] = float("nan")
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for rows in torch.arange(64).split(4):
    torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def main() -> None:
    import gradmedic as gm

    assert "site-packages" in gm.__file__, f"not the installed one: {gm.__file__}"
    assert gm.__version__ == metadata.version("gradmedic")
    kernel = gm.stats.native_available()
    if "--kernel" in sys.argv:
        wanted = sys.argv[sys.argv.index("--kernel") + 1] == "yes"
        assert kernel == wanted, f"native kernel: expected {wanted}, found {kernel}"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(SCRIPT)
        run(folder, "run", "--record", "runs/smoke", "--lang", "en", "train.py", says="GM201")
        run(folder, "diagnose", "runs/smoke", "--format", "json", says='"GM201"')
        run(folder, "explain", "GM201", "--lang", "zh", says="GM201")
        run(folder, "clip", "runs/smoke", says="")
        assert len(gm.open_run(Path(folder) / "runs" / "smoke").steps) == 16
    print(f"gradmedic {gm.__version__} from {Path(gm.__file__).parent}: fine, native kernel: {kernel}")


def run(folder: str, *arguments: str, says: str) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "gradmedic", *arguments], cwd=folder, capture_output=True, encoding="utf-8", timeout=300
    )
    assert made.returncode == 0, f"gradmedic {' '.join(arguments)}: {made.returncode}\n{made.stdout}\n{made.stderr}"
    assert says in made.stdout + made.stderr, (
        f"gradmedic {' '.join(arguments)}: no {says} in\n{made.stdout}{made.stderr}"
    )


if __name__ == "__main__":
    main()
