"""Bytes and time of the kernels, beside a copy on the device and torch's own norm and multiplication."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gpu_correctness import whose_work
from gpu_report import Bar, Section
from gpu_sizes import Context, cases
from gpu_timing import Timings
from gradmedic.clip.apply import apply_operations
from gradmedic.clip.operations import Scale
from gradmedic.stats import device as on_device

COPY, NORM, MULTIPLY = "copy on the device", "torch._foreach_norm", "torch._foreach_mul_"
ALL, BINS = "gradmedic, all statistics", "gradmedic, with histogram"
SCALED, KEPT = "gradmedic, each by its factor", "gradmedic, each by a factor of 1"
#: Times each call goes over the gradients' bytes.
PASSES = {COPY: 2, NORM: 1, MULTIPLY: 2, ALL: 1, BINS: 1, SCALED: 2, KEPT: 0}


def section(context: Context) -> Section:
    """Time every call on every list of tensors."""
    heads = (
        "tensors",
        "call",
        "GB read and written",
        "ms",
        "GB/s",
        "against its base (95 %)",
        "ms of the host",
        "rounds",
    )
    found = Section("Kernels", heads)
    found.notes.append(
        "Bases: statistics against `torch._foreach_norm`, factors against `torch._foreach_mul_`. The device is kept "
        "busy before each call, so that its time is the device's alone; that of the host, which launches, is beside it."
    )
    listed = cases(context)
    share = context.budget.left / len(listed)
    for at, (name, (shapes, dtype)) in enumerate(listed.items()):
        if context.budget.over and not context.tiny:
            found.notes.append(f"Cut short: no time was left for {name}.")
            continue
        try:
            _case(context, found, name, shapes, dtype, share, bars=at == 0)
        except torch.OutOfMemoryError:
            found.notes.append(f"{name}: out of memory; a smaller --scale fits.")
        finally:
            if context.device.type == "cuda":
                torch.cuda.empty_cache()
    found.notes.append(whose_work())
    return found


def _case(
    context: Context, found: Section, name: str, shapes: list[tuple[int, ...]], dtype: torch.dtype, share: float,
    *, bars: bool,
) -> None:  # fmt: skip
    tensors = [torch.randn(shape, device=context.device).to(dtype) for shape in shapes]
    elements = sum(x.numel() for x in tensors)
    size = elements * dtype.itemsize
    times = context.watch.interleaved(
        calls_of(context.device, tensors, elements, dtype), 3 if context.tiny else 40, context.budget.part(share)
    )
    for call in times.device:
        base = MULTIPLY if call in (MULTIPLY, SCALED, KEPT) else NORM
        ratio, low, high = times.ratio(call, base)
        moved, spent = PASSES[call] * size, times.median(call)
        speed = f"{moved / spent / 1e6:,.0f}" if moved else ""
        found.rows.append(
            (name, call, f"{moved / 1e9:.3g}", f"{spent:.4g}", speed, f"{ratio:.3f} ({low:.3f}–{high:.3f})",
             f"{times.host_median(call):.3g}", str(times.rounds))
        )  # fmt: skip
    found.figures[name] = {"bytes": size, "device_ms": times.device, "host_ms": times.host}
    if times.cut:
        found.notes.append(f"{name}: cut short after {times.rounds} of {times.planned} rounds.")
    if bars:
        found.bars += bars_of(times)


def calls_of(
    device: torch.device, tensors: list[torch.Tensor], elements: int, dtype: torch.dtype
) -> dict[str, Callable[[], object]]:
    """Return what is timed, by name; a copy is of as many bytes as the tensors have."""
    source = torch.empty(elements, dtype=dtype, device=device).normal_()
    target = torch.empty_like(source)
    factor = torch.tensor(0.999, dtype=torch.float32, device=device)
    factors = torch.full((len(tensors),), 0.999, dtype=torch.float64, device=device)
    ones = torch.ones_like(factors)
    return {
        COPY: lambda: target.copy_(source),
        NORM: lambda: torch._foreach_norm(tensors, 2),
        ALL: lambda: on_device.measure(tensors, False),
        BINS: lambda: on_device.measure(tensors, True),
        MULTIPLY: lambda: torch._foreach_mul_(tensors, factor),
        SCALED: lambda: apply_operations(tensors, [Scale(factors)], on_host=False),
        KEPT: lambda: apply_operations(tensors, [Scale(ones)], on_host=False),
    }


def bars_of(times: Timings) -> list[Bar]:
    """Return what issue and design promise of the case with a billion elements."""
    share = (1 / times.median(ALL)) / (2 / times.median(COPY))
    return [
        Bar("bytes a second of the statistics, of those of the copy", share, 0.8, at_least=True),
        Bar("statistics against torch._foreach_norm", times.ratio(ALL, NORM)[0], 1.0),
        Bar("with histogram against torch._foreach_norm", times.ratio(BINS, NORM)[0], 1.5),
    ]
