"""`torchrun -m gradmedic run`: ranks agree on one folder, one of them speaks, and a restart goes on in the folder."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

import gradmedic as gm

#: Rank 1 dies before step 6 of the first attempt, once rank 0 has on file what it can have: the agent ends it by a
#: signal, and whether it comes before or after the error in its reduction is a race. The ranks meet at a file of each
#: attempt's own: through the agent's store, those of a second attempt may be sent to addresses of the first.
SCRIPT = """
import glob, os, time, torch
import gradmedic as gm
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

attempt, rank = (int(os.environ[key]) for key in ("TORCHELASTIC_RESTART_COUNT", "RANK"))
distributed.init_process_group("gloo", init_method=f"file://{os.getcwd()}/meeting-{attempt}", rank=rank, world_size=2)
torch.manual_seed(0)
model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
torch.manual_seed(rank)
for step in range(9):
    if (step, rank, attempt) == (6, 1, 0):
        until = time.monotonic() + 100
        while time.monotonic() < until and len(gm.open_run(glob.glob("runs/*")[0]).series("step", rank=0)) < 5:
            time.sleep(0.1)
        os._exit(3)
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
distributed.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_torchrun_with_a_rank_that_dies_at_first(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("TORCHELASTIC", "GRADMEDIC"))}
    environment |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    launcher += ["--monitor-interval", "0.1", "--master-addr", "127.0.0.1", "--master-port", port]
    done = subprocess.run(
        [*launcher, "-m", "gradmedic", "run", "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    run = gm.open_run(folder)
    steps = run.series("step", rank=0).tolist()
    assert steps in ([*range(6), *range(9)], [*range(5), *range(9)])  # the last frame waits for what is logged for it
    assert run.series("step", rank=1).tolist()[-9:] == [*range(9)]
    reasons = [(event.get("rank", 0), event["reason"]) for event in run.events if event["kind"] == "end"]
    assert sorted(reasons[-2:]) == [(0, "finished"), (1, "finished")]
    assert done.stderr.count("gradmedic: healthy") == 1
    assert "2 ranks have not" not in done.stderr
