"""The metric reference: columns of the record with types from its schema, and the names under which sinks export."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from gradmedic.record.schema import SCHEMAS
from gradmedic.sinks.metric_table import ALL, Metric

TITLES = {
    "steps": "Of a step",
    "tensors": "Of a tensor at a step",
    "modules": "Of a module at a sampled step",
}
INTRO = {
    "steps": 'One row for each step of each optimizer: `run.steps`, `frame.loss`, `run.series("loss")`.',
    "tensors": "One row for each tensor of each step that was kept in full: `run.tensors`, `frame.tensors[name].norm`, "
    '`run.matrix("norm")`. Moments are over the finite elements of the pre-clip gradient.',
    "modules": "Outputs and the gradients that flow back into them: `run.modules`, `frame.modules`.",
}
HEAD = """# Metrics

Every number that gradmedic records, and the names under which sinks export them. Null (`None`) means *not known* or
*not measured*, NaN *measured, and not a number*; neither is ever written as zero. What the phases mean:
[concepts](../concepts.md); the files: [run folder](../record.md).

This page is generated from the schema of the record and the table of the sinks (`python docs/make_reference.py`).
"""
SINKS = """## As sinks export them

Prometheus has each under this name; OpenTelemetry, TensorBoard, Weights & Biases and MLflow under one made of it
([sinks](../sinks.md)).
"""


def metric_page() -> str:
    """Return the page."""
    words = column_words()
    parts = [HEAD]
    for kind, schema in SCHEMAS.items():
        rows = [_row(field.name, field.type, words[kind][field.name]) for field in schema]
        table = "\n".join(["| column | type | meaning | how to read it |", "|---|---|---|---|", *rows])
        parts.append(f"## {TITLES[kind]}\n\n{INTRO[kind]}\n\n{table}\n")
    rows = [_exported(metric) for metric in ALL]
    table = "\n".join(["| metric | kind | labels | meaning |", "|---|---|---|---|", *rows])
    parts.append(f"{SINKS}\n{table}\n")
    return "\n".join(parts)


def column_words() -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return table -> column -> its words; raises ValueError where they are not those of the schema."""
    toml: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    words: Mapping[str, Mapping[str, Mapping[str, str]]] = toml.loads(
        (Path(__file__).parent / "columns.toml").read_text(encoding="utf-8")
    )
    for kind, schema in SCHEMAS.items():
        odd = set(schema.names) ^ set(words[kind])
        if odd:
            raise ValueError(f"docs/generate/columns.toml, [{kind}]: {', '.join(sorted(odd))} is missing or no column")
    return words


def _row(name: str, kind: Any, words: Mapping[str, str]) -> str:
    unit = f" ({words['unit']})" if "unit" in words else ""
    return f"| `{name}` | {_type(kind)} | {words['text']}{unit} | {words.get('read', '')} |"


def _type(kind: Any) -> str:
    text = str(kind)
    if text.startswith("dictionary") or text == "string":
        return "text"
    if text.startswith("list"):
        return f"list of {_type(kind.value_type)}"
    if text.startswith("map"):
        return "map text to float64"
    return {"double": "float64"}.get(text, text)


def _exported(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    unit = f" ({metric.unit})" if metric.unit else ""
    return f"| `{metric.full_name}` | {metric.kind} | {labels} | {metric.help}{unit} |"
