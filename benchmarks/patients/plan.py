"""Which runs there are: each fault, each healthy twin once for all faults of its script, each control."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.patients.patient import Patient

#: Ids of twins begin so; the name of the script follows.
TWIN = "twin:"


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        id: of the patient; of a healthy twin "twin:" and the script.
        script: file name.
        seed: passed on to the script.
        split: "development" or "held-out".
        healthy: whether no fault is switched on.
    """

    id: str
    script: str
    seed: int
    split: str
    healthy: bool

    @property
    def key(self) -> tuple[str, int]:
        """What tells runs on file apart."""
        return self.id, self.seed

    def arguments(self, metric: str) -> list[str]:
        """Return the script's own arguments."""
        fault = [] if self.healthy else ["--fault", self.id]
        return [*fault, "--seed", str(self.seed), "--metric", metric]


def twin_of(script: str) -> str:
    """Return the id of a script's healthy twin."""
    return TWIN + script


def jobs(patients: Iterable[Patient], seeds: Iterable[int], twins: bool = True) -> list[Job]:
    """Return all runs, seed by seed, so that a benchmark that is stopped has seen every patient.

    Args:
        patients: those that were asked for.
        seeds: one run of each for each.
        twins: whether the healthy twins of faults run as well.
    """
    wanted = list(patients)
    split_of: dict[str, str] = {}
    for patient in wanted:
        if not patient.healthy:
            split_of.setdefault(patient.script, patient.split)
    listed: list[Job] = []
    for seed in seeds:
        if twins:
            listed += [Job(twin_of(script), script, seed, split, True) for script, split in split_of.items()]
        listed += [Job(each.id, each.script, seed, each.split, each.healthy) for each in wanted]
    return listed
