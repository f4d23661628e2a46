"""Where the time of a recorded step goes: parts of gradmedic, timed inside a real training loop.

Each part is timed where it is called, with the caches as the training leaves them; a part's time holds that of the
parts inside it. Reported is the median over the steps, so that steps which look at modules (one in 50) and at weight
norms (one in 8) do not show; the last column is the mean, in which they do.

    python benchmarks/overhead_parts.py             # about a minute and a half
    python benchmarks/overhead_parts.py --steps 300 --threads 1
"""

from __future__ import annotations

import argparse
import functools
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import gradmedic as gm
from gradmedic.ledger import Ledger
from gradmedic.probes.optimizer import OptimizerProbe
from gradmedic.probes.samples import CoordinateSampler
from gradmedic.probes.treatment import Treatment
from gradmedic.probes.watcher import StepWatcher
from gradmedic.record.writer import Writer
from gradmedic.stats import native
from overhead_models import make_transformer

#: Steps that are not counted, and steps between two waits for the writer.
_WARM_UP, _FLUSH = 60, 3
PARTS: tuple[tuple[str, Any, str], ...] = (
    ("before the backward pass", StepWatcher, "before_backward"),
    ("after the backward pass", StepWatcher, "after_backward"),
    ("before the step", StepWatcher, "before_step"),
    ("- statistics of gradients, one pass", native, "measure"),
    ("- treatment", Treatment, "apply"),
    ("- - multiplication, one pass", native, "multiply"),
    ("after the step", StepWatcher, "after_step"),
    ("- updates and weights", OptimizerProbe, "finish"),
    ("- frame, rules, record", Ledger, "pending"),
    ("- - rules", Ledger, "_judge"),
    ("sampled coordinates, three readings", CoordinateSampler, "read"),
    ("the writer's thread", Writer, "_write_pending"),
)


def timed(owner: Any, name: str, into: dict[str, float], label: str) -> None:
    """Exchange a function for one that adds up its time."""
    original: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return original(*args, **kwargs)
        finally:
            into[label] += time.perf_counter() - began

    setattr(owner, name, wrapper)


def rows(steps: int, treated: bool, spent: dict[str, float]) -> list[dict[str, float]]:
    """Train, and return the seconds of each part at each step."""
    work = make_transformer()
    transform = gm.clip.norm(1.0) if treated else None
    found: list[dict[str, float]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        work.cleanup,
        gm.watch(work.model, work.optimizer, record=f"{folder}/run", every=1, transform=transform) as monitor,
    ):
        for step in range(_WARM_UP + steps):
            spent.clear()
            own, began = monitor.overhead.seconds, time.perf_counter()
            work.optimizer.zero_grad()
            work.loss().backward()
            work.optimizer.step()
            if step % _FLUSH == 0:
                monitor.flush()
            spent["own account"] = monitor.overhead.seconds - own
            spent["the whole step"] = time.perf_counter() - began
            found.append(dict(spent))
    return found[_WARM_UP:]


def clip_alone(steps: int) -> list[float]:
    """Return the seconds that torch's clip takes in the same loop, unwatched."""
    work, taken = make_transformer(), []
    parameters = list(work.model.parameters())
    for _ in range(10 + steps):
        work.optimizer.zero_grad()
        work.loss().backward()
        began = time.perf_counter()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        taken.append(time.perf_counter() - began)
        work.optimizer.step()
    return taken[10:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100, help="steps of each run (default 100)")
    parser.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch_clip = clip_alone(max(20, options.steps // 4))
    spent: dict[str, float] = defaultdict(float)
    for label, owner, name in PARTS:
        timed(owner, name, spent, label)
    tables = [rows(options.steps, treated, spent) for treated in (False, True)]
    print("| part | watching, ms | mean | with `clip.norm`, ms | mean |\n|---|---|---|---|---|")
    for label in ("the whole step", "own account", *(label for label, _, _ in PARTS)):
        cells = []
        for table in tables:
            values = 1e3 * np.array([row.get(label, 0.0) for row in table])
            beside = label == "the writer's thread"  # it writes at every third step only
            cells += ["" if beside else f"{np.median(values):.2f}", f"{values.mean():.2f}"]
        print(f"| {label} | {' | '.join(cells)} |")
    print(f"\nFor comparison: torch's clip_grad_norm_ takes {1e3 * np.median(torch_clip):.2f} ms in the same loop.")


if __name__ == "__main__":
    main()
