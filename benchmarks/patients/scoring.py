"""Scores of runs on file: what was said, whether it was right, where and how soon. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import median

from benchmarks.patients.patient import Patient
from benchmarks.patients.plan import twin_of
from benchmarks.patients.results import Line
from benchmarks.patients.significance import less_than

#: Severities that are an alarm.
ALARMS = ("warning", "error", "critical")
#: p-value at or below which a fault's harm counts as real.
LEVEL = 0.05
#: Steps within which a fault should be named: one that is certain from the first steps, and any other.
IN_TIME = {True: 3, False: 20}
#: With fewer runs on either side no p-value can be that small.
MIN_RUNS = 3
OURS = "gradmedic"


@dataclass(frozen=True)
class Said:
    """One alarm, of whichever tool.

    Attributes:
        codes: what it names; one code for gradmedic, the codes that a peer's rule stands for.
        made: step at which it was first said.
        where: tensors and modules that it names.
        text: for lists.
        beneath: codes that are folded under it.
    """

    codes: tuple[str, ...]
    made: int
    where: tuple[str, ...] = ()
    text: str = ""
    beneath: tuple[str, ...] = ()

    def names(self, codes: Iterable[str]) -> bool:
        """Whether it names one of these codes."""
        return bool(set(self.codes) & set(codes))


@dataclass(frozen=True)
class Score:
    """One faulty run.

    Attributes:
        top1: whether the first alarm names an accepted code; `top3`: one of the first three.
        right, alarms: so many of its alarms are accepted or also true, of all of them.
        layer: whether the place was hit; None where the fault has none, or was not named at all.
        latency: steps from the fault's onset until it was first named; None where it never was. Below zero: said
            before the fault began to act.
        in_time: whether it was named within 3 steps (an invariant) or 20, and not before; None where it never was.
    """

    top1: bool
    top3: bool
    right: int
    alarms: int
    layer: bool | None
    latency: int | None
    in_time: bool | None


def said_in(line: Line, tool: str = OURS) -> list[Said]:
    """Return the alarms of a run, the most important one first."""
    if tool == OURS:
        return [_ours(each) for each in line["findings"] if each["severity"] in ALARMS]
    return [
        Said(tuple(each["codes"]), each["made"], tuple(each["where"]), each["rule"])
        for each in line["peers"].get(tool, [])
    ]


def _ours(finding: Mapping[str, object]) -> Said:
    code = str(finding["code"])
    beneath = tuple(each["code"] for each in finding.get("folded", ()))  # type: ignore[attr-defined]
    return Said((code,), finding["made"], tuple(finding["where"]), code, beneath)  # type: ignore[arg-type]


def score(patient: Patient, said: Sequence[Said]) -> Score:
    """Score the alarms of one faulty run."""
    hits = [each for each in said if each.names(patient.accepted)]
    named = hits[0] if hits else None
    layer = None
    if patient.layers and named is not None:
        layer = any(lies_in(place, patient.layers) for each in hits for place in each.where)
    latency = min(each.made for each in hits) - patient.onset if hits else None
    return Score(
        top1=bool(said) and said[0].names(patient.accepted),
        top3=any(each.names(patient.accepted) for each in said[:3]),
        right=sum(each.names([*patient.accepted, *patient.also_true]) for each in said),
        alarms=len(said),
        layer=layer,
        latency=latency,
        in_time=None if latency is None else 0 <= latency <= IN_TIME[patient.invariant],
    )


def lies_in(place: str, patterns: Iterable[str]) -> bool:
    """Whether a module or parameter lies where a pattern says; parameters count as their module, and in both ways.

    Where a script has several networks (a copy that was kept for comparison), names begin with the network's class.

    Example:
        >>> lies_in("conv2.weight", ["conv2"]), lies_in("conv2", ["conv2.weight"]), lies_in("conv", ["conv2"])
        (True, True, False)
        >>> lies_in("ConvNet_2.features.0", ["features.0*"]), lies_in("block.features.0", ["features.0*"])
        (True, False)
    """
    inside = _without_network(place)
    for pattern in patterns:
        targets = {pattern, _module(pattern)}
        for name in {place, _module(place), inside, _module(inside)}:
            if any(fnmatchcase(name, each) or fnmatchcase(name, f"{each}.*") for each in targets if each):
                return True
    return False


def _without_network(name: str) -> str:
    """Return a name without the class of its network in front; attributes of modules begin with a small letter."""
    first, _, rest = name.partition(".")
    return rest if rest and first[:1].isupper() else name


def _module(name: str) -> str:
    """Return the module of a parameter, by the last part of its name; other names as they are."""
    before, _, last = name.rpartition(".")
    is_parameter = last.startswith(("weight", "bias", "in_proj_", "gamma", "beta"))
    return before if before and is_parameter else name


# -- harm ----------------------------------------------------------------------------------------------------------


def admitted(patient: Patient, lines: Iterable[Line]) -> bool | None:
    """Return whether a fault counts: a broken contract, or harm that is statistically real.

    Args:
        patient: the fault.
        lines: of all runs; those of this fault and of its twin are compared, run by run.

    Returns:
        True or False; None when there are fewer than three runs on either side.
    """
    if patient.contract:
        return True
    faulty, twins = [], []
    for line in lines:
        if line["id"] == patient.id:
            faulty.append(line)
        elif line["id"] == twin_of(patient.script):
            twins.append(line)
    if min(len(faulty), len(twins)) < MIN_RUNS:
        return None
    higher = next((line["higher_is_better"] for line in twins if line["higher_is_better"] is not None), True)
    return less_than(*(_goodness(each, higher) for each in (faulty, twins))) <= LEVEL


def _goodness(lines: Iterable[Line], higher: bool) -> list[float]:
    """Return metrics with their sign turned so that more is better; none at all is the worst there is."""
    sign = 1.0 if higher else -1.0
    return [-math.inf if line["metric"] is None else sign * float(line["metric"]) for line in lines]


# -- sums ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sum:
    """Scores of many runs; shares are None where there is nothing to share out."""

    runs: int
    top1: float | None
    top3: float | None
    precision: float | None
    layer: float | None
    latency: float | None
    in_time: float | None


def summed(scores: Sequence[Score]) -> Sum:
    """Add up scores: shares of runs, precision over all alarms, the median latency of the runs that were named."""
    latencies = [each.latency for each in scores if each.latency is not None]
    return Sum(
        runs=len(scores),
        top1=_share(scores, lambda each: each.top1),
        top3=_share(scores, lambda each: each.top3),
        precision=_ratio(sum(each.right for each in scores), sum(each.alarms for each in scores)),
        layer=_share([each for each in scores if each.layer is not None], lambda each: bool(each.layer)),
        latency=median(latencies) if latencies else None,
        in_time=_share([each for each in scores if each.in_time is not None], lambda each: bool(each.in_time)),
    )


def _share(scores: Sequence[Score], test: Callable[[Score], bool]) -> float | None:
    return _ratio(sum(test(each) for each in scores), len(scores))


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
