"""The catalogue: what is wrong with each patient, and which codes name it. Read from TOML, checked as it is read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gradmedic.errors import InputError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib  # type: ignore[import-not-found]

HERE = Path(__file__).resolve().parent
SPLITS = ("development", "held-out")
#: A fault may be named by a later rule; its code has this form in any case.
_CODE = re.compile(r"GM[1-5]\d\d")
_REQUIRED = ("id", "script", "accepted", "split")


@dataclass(frozen=True)
class Patient:
    """One entry of the catalogue.

    Attributes:
        id: of a fault ("F06", "X01"), or of a healthy control, which begins with H.
        script: file name within the folder of scripts.
        accepted: codes that name the fault, the primary one first; empty for a control.
        also_true: codes that are true of this run as well; they are not counted as wrong.
        layers: patterns of the module or parameter names where the fault sits; empty when it is the whole run.
        onset: optimizer step at which the fault begins to act.
        contract: whether a contract is broken, so that harm need not be shown.
        invariant: whether it is certain from the first steps (bar for the latency: 3 steps, else 20).
        split: "development" (rules were tuned on it) or "held-out".
    """

    id: str
    script: str
    accepted: tuple[str, ...]
    split: str
    title: str = ""
    also_true: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    onset: int = 0
    contract: bool = False
    invariant: bool = False

    @property
    def healthy(self) -> bool:
        """Whether this is a control."""
        return not self.accepted

    @property
    def code(self) -> str:
        """The primary code, "" for a control."""
        return self.accepted[0] if self.accepted else ""


def load_catalogue(root: Path = HERE) -> list[Patient]:
    """Read all patients.

    Args:
        root: folder that holds `catalogue/*.toml` and `scripts/`.

    Raises:
        InputError: the catalogue is empty, or an entry is wrong; all that is wrong is said at once.
    """
    patients: list[Patient] = []
    wrong: list[str] = []
    for file in sorted((root / "catalogue").glob("*.toml")):
        try:
            entries = tomllib.loads(file.read_text(encoding="utf-8")).get("patient", [])
        except tomllib.TOMLDecodeError as error:
            wrong.append(f"{file.name}: {error}")
            continue
        for entry in entries:
            problem = _problem_of(entry)
            if problem:
                wrong.append(f"{file.name}, {entry.get('id', 'an entry without id')}: {problem}")
            else:
                patients.append(_patient(entry))
    wrong += problems(patients, root / "scripts")
    if wrong:
        raise InputError("the catalogue of patients has errors:\n  " + "\n  ".join(wrong))
    if not patients:
        raise InputError(f"expected [[patient]] entries in {root / 'catalogue'}/*.toml, found none")
    return patients


def problems(patients: Iterable[Patient], scripts: Path) -> list[str]:
    """Return what is wrong with entries that are well formed each: ids given twice, scripts that are missing."""
    wrong: list[str] = []
    seen: set[str] = set()
    for patient in patients:
        if patient.id in seen:
            wrong.append(f"{patient.id}: the id is given twice")
        seen.add(patient.id)
        if not (scripts / patient.script).is_file():
            wrong.append(f"{patient.id}: there is no script {patient.script}")
    return wrong


def _patient(entry: Mapping[str, Any]) -> Patient:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    return Patient(**values)


def _problem_of(entry: Mapping[str, Any]) -> str:
    known = {field.name for field in fields(Patient)}
    missing = [key for key in _REQUIRED if key not in entry]
    if missing:
        return f"expected {', '.join(missing)}"
    if set(entry) - known:
        return f"unknown keys {sorted(set(entry) - known)}; there are: {', '.join(sorted(known))}"
    if entry["split"] not in SPLITS:
        return f"split is one of {SPLITS}, got {entry['split']!r}"
    if entry["id"].startswith("H") != (not entry["accepted"]):
        return "ids of healthy controls begin with H, and only they accept no code"
    if not isinstance(entry.get("onset", 0), int) or entry.get("onset", 0) < 0:
        return f"onset is a step, a whole number of at least 0, got {entry['onset']!r}"
    codes = [*entry["accepted"], *entry.get("also_true", ())]
    odd = [code for code in codes if not _CODE.fullmatch(code)]
    return f"codes look like GM401, got {odd}" if odd else ""
