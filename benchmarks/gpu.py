"""What watching and clipping cost on a card, settled in five minutes: one command, no download.

    python benchmarks/gpu.py --out results            # everything; writes results/gpu.json and results/gpu.md
    python benchmarks/gpu.py kernel steps             # some sections
    python benchmarks/gpu.py --device cpu --tiny      # a rehearsal without a card: no measurement

Sections in order of worth: correctness (exit code 1 where something is wrong), kernel, counts, steps, foreach. Each has
a share of the seconds and says when it was cut short; one that does not fit into the card's memory says so, and the
next goes on.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpu_report import Section
    from gpu_sizes import Context

#: Module of each section, and its share of the seconds.
SECTIONS = {
    "correctness": ("gpu_correctness", 0.2),
    "kernel": ("gpu_kernel", 0.2),
    "counts": ("gpu_counts", 0.1),
    "steps": ("gpu_steps", 0.4),
    "foreach": ("gpu_foreach", 0.1),
}


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--seconds", type=float, default=300.0, help="how long it may take, about (default 300)")
    parser.add_argument("--device", default="cuda", help="cuda (ROCm too), cuda:1, …, or cpu for a rehearsal")
    parser.add_argument("--tiny", action="store_true", help="sizes of a rehearsal; goes with --device cpu")
    parser.add_argument("--scale", type=float, help="share of the full sizes, in (0, 1] (default: what fits the card)")
    parser.add_argument("--out", type=Path, help="folder for gpu.json and gpu.md")
    options = parser.parse_args(arguments)
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"unknown section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    if options.scale is not None and not 0 < options.scale <= 1:
        parser.error(f"--scale: expected a share in (0, 1], got {options.scale}")
    if options.device.startswith("cpu") != options.tiny:
        parser.error("a CPU gets through the sizes of a rehearsal only: give both --device cpu and --tiny, or neither")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the sections; returns 0, 1 where a result is wrong or a section failed, 2 where there is no card."""
    options = options_of(arguments)
    rehearsal = options.tiny
    if rehearsal and importlib.util.find_spec("triton") is not None:
        os.environ.setdefault("TRITON_INTERPRET", "1")  # decided when Triton is imported
    import torch

    if not rehearsal and not torch.cuda.is_available():
        print(
            "gpu.py: torch sees no card here; `--device cpu --tiny` rehearses the script without one.", file=sys.stderr
        )
        return 2
    from gpu_report import Section, about, head, write
    from gpu_sizes import Context, fitting_scale
    from gpu_timing import Budget, Stopwatch

    device = torch.device(options.device)
    if not rehearsal:
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    environment = about(device)
    budget = Budget(options.seconds)
    scale = options.scale or fitting_scale(device)
    wanted = [name for name in SECTIONS if name in options.sections or not options.sections]
    shares = sum(SECTIONS[name][1] for name in wanted)
    print(head(environment, rehearsal=rehearsal))
    if scale < 1:
        print(f"Sizes are {scale:.0%} of the full ones.\n")
    done: list[Section] = []
    failed = False
    for name in wanted:
        if budget.over and done:
            done.append(Section(name, notes=[f"Left out: the {options.seconds:g} seconds were over."]))
        else:
            part = budget.part(options.seconds * SECTIONS[name][1] / shares)
            section, problem = attempt(name, Context(device, rehearsal, scale, part, Stopwatch(device)))
            failed = failed or problem or section.wrong
            done.append(section)
        print(done[-1].markdown(judged=not rehearsal), flush=True)
        if options.out:
            write(options.out, {**environment, "scale": f"{scale:.3g}"}, done, rehearsal=rehearsal)
    return int(failed)


def attempt(name: str, context: Context) -> tuple[Section, bool]:
    """Run a section; returns it, and whether it failed by more than a lack of memory."""
    import torch

    from gpu_report import Section

    try:
        return importlib.import_module(SECTIONS[name][0]).section(context), False
    except torch.OutOfMemoryError as error:
        told, problem = f"Out of memory; a smaller --scale fits. ({str(error).splitlines()[0]})", False
    except Exception as error:
        traceback.print_exc()
        told, problem = f"Failed: {type(error).__name__}: {error}", True
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return Section(name, notes=[told]), problem


if __name__ == "__main__":
    raise SystemExit(main())
