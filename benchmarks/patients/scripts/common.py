"""Command line and result file that the training scripts of this folder share."""

from __future__ import annotations

import argparse
import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch


@dataclass(frozen=True)
class Options:
    """What a script was asked to do.

    Args:
        fault: Identifier of the fault to inject; `None` trains the healthy twin.
        seed: Seed of Python's, numpy's and torch's generators, already set.
        metric: File that `report` writes; `None`: it only prints.
        steps: Optimizer steps to take; `None`: as many as the script's author chose.
    """

    fault: str | None
    seed: int
    metric: Path | None
    steps: int | None


def options(faults: Sequence[str] = (), argv: Sequence[str] | None = None) -> Options:
    """Reads the command line, seeds every generator and limits torch to one thread.

    Args:
        faults: Faults that the script knows; any other is refused. Empty: every identifier is let through.
        argv: Arguments to read instead of the command line.

    Returns:
        The options; `fault` is `None` for a healthy run.

    Example:
        >>> options(("F06",), ["--fault", "F06", "--seed", "3"])
        Options(fault='F06', seed=3, metric=None, steps=None)
    """
    read = _parse(argv, faults)
    random.seed(read.seed)
    np.random.seed(read.seed)
    torch.manual_seed(read.seed)
    torch.set_num_threads(1)
    return read


def report(metric: float | torch.Tensor, higher_is_better: bool, argv: Sequence[str] | None = None) -> None:
    """Prints the final metric and writes it to the file named by `--metric`.

    Args:
        metric: Held-out accuracy, validation loss or the like; a value that is not finite is written as null.
        higher_is_better: Direction of the metric.
        argv: Arguments to read instead of the command line.
    """
    value = float(metric)
    result = {"metric": value if math.isfinite(value) else None, "higher_is_better": higher_is_better}
    print(f"metric {value:.4f}")
    path = _parse(argv).metric
    if path is not None:
        path.write_text(json.dumps(result) + "\n", encoding="utf-8")


def _parse(argv: Sequence[str] | None, faults: Sequence[str] = ()) -> Options:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--fault", choices=tuple(faults) or None, help="fault to inject (default: none)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--metric", type=Path, help="file to write the final metric to")
    parser.add_argument("--steps", type=int, help="number of optimizer steps")
    return Options(**vars(parser.parse_args(argv)))
