"""First of all: is it right? Every type against the float64 reference, and what is changed against float64 too."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from gpu_report import Bar, Section
from gpu_sizes import Context
from gradmedic.clip.apply import apply_operations
from gradmedic.clip.operations import Limit, Operation, Scale, UnitScale
from gradmedic.stats import device as on_device
from gradmedic.stats import reference, triton_backend
from gradmedic.stats.table import StatsTable
from gradmedic.stats.triton_tables import CHUNK

BOUND = 1e-5
TYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip


def section(context: Context) -> Section:
    """Measure and change random tensors of every type, and hold the results to the reference."""
    heads = (
        "type",
        "counts",
        "histogram",
        "worst norm",
        "worst mean of magnitudes",
        "worst std",
        "twice the same bits",
    )
    found = Section("Correctness, against float64", (*heads, "factors, units, limits"))
    worst: list[float] = []
    for dtype in TYPES:
        if context.budget.over and found.rows:
            found.notes.append(f"Cut short before {dtype}: the section's time was over.")
            break
        try:
            worst.append(_one_type(context, dtype, found))
        except (NotImplementedError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            found.notes.append(f"{dtype}: not measured ({type(error).__name__}: {str(error).splitlines()[0]})")
            found.wrong = found.wrong or "float8" not in str(dtype)
    found.bars.append(Bar("worst relative error of a moment", max(worst, default=math.nan), BOUND))
    found.wrong = found.wrong or not worst or not max(worst) <= BOUND
    found.notes.append(whose_work())
    return found


def whose_work() -> str:
    """Say whether the kernels have done it: a benchmark of the way around them is another one."""
    if triton_backend.kernels() is None:
        return "Triton is not installed: torch's operations measured."
    problem = on_device.kernels.problem
    return f"The kernels FAILED, torch's operations measured: {problem}" if problem else "The kernels did the work."


def tensors_of(context: Context, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return awkward tensors: empty, odd, longer than a chunk, unaligned, with what is not finite, of extreme sizes."""
    generator = torch.Generator().manual_seed(1)
    long = 1100 if context.tiny else 2 * CHUNK + 13
    made = [torch.randn(n, generator=generator, dtype=torch.float64) for n in (0, 1, 7, 1025, long, long)]
    made[3][5], made[3][9], made[3][11:90] = math.nan, -math.inf, 0.0
    made[4] = made[4] * 0.02 + 1.0
    if dtype.itemsize > 1:
        large = {torch.float16: 6e4, torch.float64: 1e200}.get(dtype, 1e25)
        made += [torch.full((5000 if not context.tiny else 100,), large, dtype=torch.float64), made[2] / large]
    elif dtype == torch.float8_e4m3fn:
        made[3][9] = 1.0  # it has no infinities
    placed = [x.to(dtype).to(context.device) for x in made]
    placed[5] = placed[5][1:]
    return placed


def _one_type(context: Context, dtype: torch.dtype, found: Section) -> float:
    tensors = tensors_of(context, dtype)
    expected = reference.measure([x.cpu() for x in tensors], True)
    got, again = (on_host(on_device.measure(tensors, True)) for _ in range(2))
    errors = [
        float(((a - b).abs() / scale.clamp(min=5e-324)).nan_to_num(nan=0.0).max())
        for a, b, scale in (
            (got.norm, expected.norm, expected.norm),
            (got.mean_abs, expected.mean_abs, expected.mean_abs),
            (got.std, expected.std, torch.maximum(expected.std, expected.max_abs / 8)),
        )
    ]
    counts = bool(torch.equal(got.counts, expected.counts))
    bins = (
        got.log2_hist is not None and expected.log2_hist is not None and torch.equal(got.log2_hist, expected.log2_hist)
    )
    same = torch.equal(got.moments, again.moments)
    changed = "" if dtype.itemsize == 1 else _changes(context, dtype)
    found.wrong = found.wrong or not (counts and bins and same) or changed not in ("", "right")
    words = {True: "exact", False: "WRONG"}
    found.rows.append(
        (str(dtype).removeprefix("torch."), words[counts], words[bins], *(f"{e:.1e}" for e in errors),
         "yes" if same else "NO", changed)
    )  # fmt: skip
    return max(errors)


def on_host(table: StatsTable) -> StatsTable:
    bins = None if table.log2_hist is None else table.log2_hist.cpu()
    return StatsTable(table.moments.cpu(), table.counts.cpu(), bins)


def _changes(context: Context, dtype: torch.dtype) -> str:
    """Return "right", or which operation is not."""
    generator = torch.Generator().manual_seed(2)
    rows, columns = (40, 90) if context.tiny else (300, 5001)
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64).to(dtype)
    x[0, 0] = math.nan
    units = torch.rand(rows, generator=generator, dtype=torch.float64).mul(3).ceil().div(3)
    one = torch.tensor([0.3], dtype=torch.float64)
    exact = x.double()
    limited = torch.where(exact.isinf(), exact, exact.clamp(-0.5, 0.5))
    ways: dict[str, tuple[Callable[[], Operation], torch.Tensor]] = {
        "factors": (lambda: Scale(one.to(context.device)), exact * 0.3),
        "units": (lambda: UnitScale({0: units.to(context.device)}, {0: 0}), exact * units[:, None]),
        "limits": (lambda: Limit({0: 0.5}), limited),
    }
    wrong = []
    for name, (operation, expected) in ways.items():
        got = x.clone().to(context.device)
        apply_operations([got], [operation()], on_host=False)
        close = torch.finfo(dtype).eps if dtype != torch.float64 else 1e-14
        if not torch.allclose(got.cpu().double(), expected, rtol=close, atol=1e-6 * close, equal_nan=True):
            wrong.append(name)
    return f"WRONG: {', '.join(wrong)}" if wrong else "right"
