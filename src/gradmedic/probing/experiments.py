"""All active probes in turn, each on the model as it is, and the model afterwards as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch

from gradmedic.errors import InputError
from gradmedic.muting import muted
from gradmedic.probing.batches import doubled, other_inputs
from gradmedic.probing.future import future
from gradmedic.probing.line import line
from gradmedic.probing.overfit import overfit
from gradmedic.probing.result import ProbeResult
from gradmedic.probing.target import Target
from gradmedic.probing.untouched import Held, untouched

Probe = Callable[[Target, Held], ProbeResult]

PROBES: dict[str, Probe] = {
    "line": line,
    "batch": doubled,
    "input": other_inputs,
    "future": future,
    "overfit": overfit,
}


def run_probes(target: Target, only: Sequence[str] | None = None, seconds: float = 10.0) -> list[ProbeResult]:
    """Run probes; weights, buffers, gradients, optimizers, modes and random numbers are afterwards what they were.

    Args:
        target: what is probed.
        only: names of probes, None for all.
        seconds: bound on the time of the overfit probe.

    Returns:
        One result each, in the order of `PROBES`. A probe that cannot be made says what it needs.

    Raises:
        InputError: an unknown name, or a loss that is not one.
    """
    chosen = check_names(only)
    made: list[ProbeResult] = []
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    if distributed and torch.distributed.get_world_size() > 1:
        return [ProbeResult("all", "needs", reason="a run of one process: others would wait for this one")]
    for name in chosen:
        with muted(), warnings.catch_warnings():
            # cuDNN warns that the weights of a recurrent layer do not lie side by side: for a while, they do not.
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
            try:
                with untouched(target.models, target.parameters) as held:
                    made.append(overfit(target, held, seconds) if name == "overfit" else PROBES[name](target, held))
            except InputError:
                raise
            except Exception as error:  # the host's own function, on a batch that it was not made for
                made.append(ProbeResult(name, "failed", reason=f"{type(error).__name__}: {error}"))
    return made


def check_names(only: Sequence[str] | None) -> list[str]:
    """Return the names of the probes that are wanted.

    Raises:
        InputError: there is no such probe.
    """
    wanted = list(PROBES) if only is None else ([only] if isinstance(only, str) else list(only))
    unknown = [name for name in wanted if name not in PROBES]
    if unknown:
        raise InputError(f"only: expected names among {', '.join(PROBES)}, got {unknown[0]!r}")
    return [name for name in PROBES if name in wanted]
