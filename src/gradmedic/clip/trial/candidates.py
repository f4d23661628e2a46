"""The methods that are tried: each as it is written behind `--clip`, and the transform that this makes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gradmedic.clip.methods import adagc, autoclip, median_clip, zclip
from gradmedic.clip.norm import norm
from gradmedic.clip.thresholds import percentile
from gradmedic.guard.spikes import skip_spikes

#: Thresholds that are taken from the healthy part, by name and percentile.
LEVELS = {"p75": 75.0, "p90": 90.0, "p95": 95.0}
#: What is used without looking.
USUAL = 1.0
#: What needs more than norms, and is left out.
LEFT_OUT = ("agc", "spike_clip", "value", "param_ratio")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One method.

    Attributes:
        method: as behind `--clip`.
        note: see `Outcome.note`.
        transform: what that makes.
        adapts: whether its threshold follows the norms.
        by_tensor: whether it needs norms by tensor.
    """

    method: str
    note: str
    transform: Any
    adapts: bool = False
    by_tensor: bool = False


def candidates(percentiles: Mapping[str, float], own: float | None, *, tables: bool) -> Iterator[Candidate]:
    """Yield the methods to try.

    Args:
        percentiles: of the healthy part, "p75", "p90" and "p95" among them.
        own: the threshold that the run had, None without one.
        tables: whether there are norms by tensor.
    """
    limits = [(USUAL, "usual"), *((rounded(percentiles[name]), name) for name in LEVELS)]
    if own is not None:
        limits.insert(0, (rounded(own), "own"))
    seen: set[float] = set()
    for limit, note in limits:
        # The percentiles come with their own names even where they meet the usual threshold or each other.
        if note == "usual" and limit in {value for value, other in limits if other != "usual"}:
            continue
        if note in ("p75", "p90") and limit in {rounded(percentiles[name]) for name in LEVELS if name > note}:
            continue
        if note == "own" and limit in {rounded(percentiles[name]) for name in LEVELS}:
            continue
        if limit not in seen:
            yield Candidate(f"norm({limit!r})", note, norm(limit))
        seen.add(limit)
    yield from _adaptive(rounded(percentiles["p95"]), tables=tables)


def _adaptive(start: float, *, tables: bool) -> Iterator[Candidate]:
    """Yield those that follow the norms; until they know enough, the 95th percentile of this run holds."""
    yield Candidate(f"norm(percentile(95, fallback={start!r}))", "", norm(percentile(95, fallback=start)), True)
    yield Candidate("autoclip()", "", autoclip(), True)
    yield Candidate(f"median_clip(fallback={start!r})", "", median_clip(fallback=start), True)
    yield Candidate(f"zclip(fallback={start!r})", "", zclip(fallback=start), True)
    if tables:
        yield Candidate(f"adagc(absolute={start!r})", "", adagc(absolute=start), True, True)
        each = norm(percentile(95, fallback=start), per="tensor")
        yield Candidate(f"norm(percentile(95, fallback={start!r}), per='tensor')", "", each, True, True)
    yield Candidate("skip_spikes()", "", skip_spikes(), True)


def expression(method: str) -> str:
    """Return a method as Python that imports gradmedic as gm.

    Example:
        >>> expression("norm(percentile(95))")
        'gm.clip.norm(gm.clip.percentile(95))'
    """

    def qualified(found: re.Match[str]) -> str:
        return f"gm.{'guard' if found[1].startswith('skip_') else 'clip'}.{found[1]}("

    return re.sub(r"([a-z_]+)\(", qualified, method)


def rounded(value: float) -> float:
    """Return a threshold as one would write it, with three significant digits."""
    return float(f"{value:.3g}")
