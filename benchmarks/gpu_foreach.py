"""torch's own clip with foreach off and on, and ours: statistics of every tensor, decision, scaling."""

from __future__ import annotations

from collections.abc import Callable

import torch

from clip import OurClip, parameters_of, restorer
from gpu_report import Section
from gpu_sizes import Context
from gradmedic import clip
from gradmedic.clip.spec import Spec

OFF, ON, OURS = "torch, foreach=False", "torch, foreach=True", "gradmedic: statistics + norm"


def section(context: Context) -> Section:
    """Time 1M, 10M and 100M elements in 100 tensors, clipped and not."""
    heads = ("elements", "case", "clip", "ms", "against foreach off (95 %)", "ms of the host", "rounds")
    found = Section("foreach", heads)
    sizes = (1_000,) if context.tiny else (1_000_000, 10_000_000, context.size(100_000_000, 20_000_000))
    share = context.budget.left / (2 * len(sizes))
    for elements in sizes:
        for case, limit in (("not clipped", 1e3), ("clipped", 0.5)):
            if context.budget.over and not context.tiny:
                found.notes.append(f"Cut short: no time was left for {elements:,} elements, {case}.")
                continue
            try:
                _case(context, found, elements, case, limit, share)
            except torch.OutOfMemoryError:
                found.notes.append(f"{elements:,} elements, {case}: out of memory.")
    return found


def _case(context: Context, found: Section, elements: int, case: str, limit: float, share: float) -> None:
    count = 5 if context.tiny else 100
    with torch.device(context.device):
        parameters = parameters_of([(elements // count,)] * count)

    def torchs(foreach: bool) -> Callable[[], object]:
        return lambda: torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=foreach)

    calls: dict[str, Callable[[], object]] = {OFF: torchs(False), ON: torchs(True)}
    ours = OurClip(parameters, clip.norm(limit))
    ours.spec = Spec(ours.spec.tensors, context.device)
    ours.state = ours.transform.init(ours.spec)
    calls[OURS] = ours
    rounds = 3 if context.tiny else 40
    times = context.watch.interleaved(calls, rounds, context.budget.part(share), before=restorer(parameters))
    for name in calls:
        ratio, low, high = times.ratio(name, OFF)
        found.rows.append(
            (f"{elements:,}", case, name, f"{times.median(name):.4g}", f"{ratio:.3f} ({low:.3f}–{high:.3f})",
             f"{times.host_median(name):.3g}", str(times.rounds))
        )  # fmt: skip
    found.figures[f"{elements} {case}"] = {"device_ms": times.device, "host_ms": times.host}
    if times.cut:
        found.notes.append(f"{elements:,} elements, {case}: cut short after {times.rounds} of {times.planned} rounds.")
