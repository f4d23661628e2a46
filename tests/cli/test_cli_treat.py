"""`gradmedic run --clip` and `--guard`: an unmodified script is treated."""

from __future__ import annotations

import json

import pytest

import gradmedic as gm

_SCRIPT = """
import sys
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
inputs = torch.randn(64, 4)
targets = inputs.sum(1, keepdim=True)
for step in range(30):
    batch = inputs.clone()
    if step == 20 and "nan" in sys.argv:
        batch[0, 0] = float("nan")
    loss = ((model(batch) - targets) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    if "clips" in sys.argv:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
print("finite" if torch.isfinite(model[0].weight).all() else "ruined")
"""


@pytest.fixture
def run(gm_fork, tmp_path):
    """`run(*options, script=arguments)`: trains under `gradmedic run`."""
    (tmp_path / "train.py").write_text(_SCRIPT)
    return lambda *options, script=(): gm_fork("run", *options, "train.py", *script)


def test_a_guard_saves_a_run_with_a_bad_row(run, tmp_path):
    unguarded = run("--no-record", script=["nan"])
    assert unguarded.stdout == b"ruined\n"
    guarded = run("--record", "run", "--guard", script=["nan"])
    assert guarded.returncode == 0
    assert guarded.stdout == b"finite\n"
    assert b"skipped" in guarded.stderr
    steps = gm.open_run(tmp_path / "run").steps
    assert [row["step"] for row in steps.to_pylist() if row["skipped"]] == [20]


def test_ours_comes_first_where_the_script_clips_by_itself(run, tmp_path):
    done = run("--record", "run", "--clip", "norm(1.0)", script=["clips"])
    assert done.returncode == 0
    assert done.stdout == b"finite\n"
    rows = gm.open_run(tmp_path / "run").steps.to_pylist()
    # Whose step it will be is known once the optimizer has stepped: on the first step the script's clip comes first.
    assert rows[0]["grad_norm_post"] == pytest.approx(0.5, rel=1e-4)
    both = [row for row in rows[1:] if row["grad_norm"] > 1.0]
    assert both
    for row in both:
        assert row["transform_threshold"] == 1.0
        assert row["transform_scale"] == pytest.approx(1.0 / row["grad_norm"], rel=1e-4)
        assert row["clip_threshold"] == 0.5
        assert row["grad_norm_post"] == pytest.approx(0.5, rel=1e-4)
    assert "clip" in json.dumps(json.loads((tmp_path / "run" / "run.json").read_text())).lower()


def test_a_pattern_that_matches_nothing_ends_the_run_before_a_step(run, tmp_path):
    done = run("--no-record", "--clip", "layers({'encoder.*': 1.0})")
    assert done.returncode == 2
    assert done.stdout == b""
    assert b"'encoder.*' matches no parameter" in done.stderr
    assert b"Linear" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_breaker_halts_with_code_1_and_stops_with_code_0(run, tmp_path):
    halted = run("--record", "halted", "--guard", "--clip", "breaker(0.01)")
    assert halted.returncode == 1
    assert halted.stdout == b""
    assert b"training is halted at step 0" in halted.stderr
    assert b"Traceback" not in halted.stderr
    stopped = run("--record", "stopped", "--clip", "breaker(0.01, on_trip='stop')")
    assert stopped.returncode == 0
    assert b"stopped at step 0" in stopped.stderr
    for folder in ("halted", "stopped"):
        assert gm.open_run(tmp_path / folder).steps["skipped"].to_pylist() == [True]
