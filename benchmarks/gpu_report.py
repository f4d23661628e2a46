"""What a section has found, and how it is written: Markdown to read, JSON to keep."""

from __future__ import annotations

import json
import math
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

NO_MEASUREMENT = (
    "**No measurement.** A rehearsal on a CPU with tiny sizes: it shows that the script runs, and says nothing "
    "about any card; no bar is judged."
)


REHEARSED = "not judged"


@dataclass
class Bar:
    """A bound that a figure is held to; `value` None: not measured."""

    name: str
    value: float | None
    bound: float
    at_least: bool = False
    unit: str = ""

    @property
    def verdict(self) -> str:
        if self.value is None or math.isnan(self.value):
            return "not measured"
        return "met" if (self.value >= self.bound if self.at_least else self.value <= self.bound) else "MISSED"


@dataclass
class Section:
    """A table, its bars, and what has to be said about it.

    Attributes:
        title: heading.
        heads: names of the columns.
        rows: cells, as many as heads.
        bars: what was promised.
        notes: sentences: what was cut short, what did not fit.
        figures: numbers for the JSON file.
        wrong: whether something that was checked is not right.
    """

    title: str
    heads: Sequence[str] = ()
    rows: list[Sequence[str]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    wrong: bool = False

    def markdown(self, *, judged: bool = True) -> str:
        lines = [f"### {self.title}", ""]
        if self.rows:
            lines += ["| " + " | ".join(self.heads) + " |", "|---" * len(self.heads) + "|"]
            lines += ["| " + " | ".join(row) + " |" for row in self.rows]
            lines.append("")
        if self.bars:
            lines += ["| bar | bound | found | |", "|---|---|---|---|"]
            for bar in self.bars:
                found = "" if bar.value is None else f"{bar.value:.3g}{bar.unit}"
                sign = ">=" if bar.at_least else "<="
                verdict = bar.verdict if judged else REHEARSED
                lines.append(f"| {bar.name} | {sign} {bar.bound:g}{bar.unit} | {found} | {verdict} |")
            lines.append("")
        return "\n".join([*lines, *(f"{note}\n" for note in self.notes)])


def about(device: torch.device) -> dict[str, str]:
    """Return what the figures belong to: the card, its driver, the versions."""
    try:
        import triton

        version = str(triton.__version__)
    except ImportError:
        version = "not installed"
    known = {"torch": str(torch.__version__), "triton": version, "python": platform.python_version()}
    if device.type != "cuda":
        return {"device": f"CPU, {platform.machine()}", **known}
    properties = torch.cuda.get_device_properties(device)
    built = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    memory = f"{properties.total_memory / 2**30:.0f} GiB"
    processors = f"{properties.multi_processor_count} multiprocessors"
    return {"device": f"{properties.name}, {memory}, {processors}", "driver": _driver(), "built for": built, **known}


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        shown = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return shown.splitlines()[0].strip()
    except (OSError, subprocess.SubprocessError, IndexError):
        return "not known"


def write(folder: Path, environment: Mapping[str, str], sections: Sequence[Section], *, rehearsal: bool) -> None:
    """Write `gpu.json` and `gpu.md` into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    kept = {
        "measurement": not rehearsal,
        "environment": dict(environment),
        "sections": [
            {
                **asdict(each),
                "bars": [{**asdict(bar), "verdict": REHEARSED if rehearsal else bar.verdict} for bar in each.bars],
            }
            for each in sections
        ],
    }
    (folder / "gpu.json").write_text(json.dumps(_strict(kept), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = "\n".join(
        [head(environment, rehearsal=rehearsal), *(each.markdown(judged=not rehearsal) for each in sections)]
    )
    (folder / "gpu.md").write_text(text, encoding="utf-8")


def head(environment: Mapping[str, str], *, rehearsal: bool) -> str:
    lines = ["## On a card" if not rehearsal else "## Rehearsal", ""]
    lines += [f"{NO_MEASUREMENT}\n"] if rehearsal else []
    return "\n".join([*lines, "; ".join(f"{name}: {value}" for name, value in environment.items()), ""])


def _strict(value: Any) -> Any:
    """Return a value that strict JSON can hold: what is not finite becomes a word."""
    if isinstance(value, Mapping):
        return {str(key): _strict(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
