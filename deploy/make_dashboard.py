"""Write the Grafana dashboard from the metric table, so that neither knows a metric that the other does not.

python deploy/make_dashboard.py           writes grafana/dashboards/gradmedic.json
python deploy/make_dashboard.py --check   fails when that file is not what it would write
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from gradmedic.sinks.metric_table import ALL, Metric

OUTPUT = Path(__file__).resolve().parent / "grafana" / "dashboards" / "gradmedic.json"
_METRICS: dict[str, Metric] = {metric.name: metric for metric in ALL}
_CHOSEN = 'run=~"$run"'
_WIDTH, _HEIGHT = 8, 8
_UNITS = {"seconds": "s", "ratio": "percentunit", "": "short"}


class Panel(NamedTuple):
    """One panel: queries name metrics as `{grad_norm}`, which become their full names."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = ""
    kind: str = "timeseries"
    log: bool = False
    help: str = ""


PANELS: tuple[Panel, ...] = (
    Panel("Loss", (("{loss}", "{{optimizer}}"),)),
    Panel(
        "Gradient norm",
        (("{grad_norm}", "{{optimizer}} {{phase}}"), ("{clip_threshold}", "{{optimizer}} threshold")),
        log=True,
        help="L2 norm of all gradients before and after clipping, and the threshold in force.",
    ),
    Panel("Learning rate", (("{learning_rate}", "{{optimizer}} group {{group}}"),), log=True),
    Panel(
        "Largest parameter gradients",
        (("{layer_grad_norm}", "{{layer}}"),),
        log=True,
        help="The largest gradient norms of single parameters before clipping; what is not finite comes first, as NaN.",
    ),
    Panel(
        "Clipped steps",
        (("{clip_ratio}", "{{optimizer}} so far"), ("rate({steps_clipped}[5m]) / rate({steps}[5m])", "last 5 min")),
        unit="ratio",
    ),
    Panel("Clip factor", (("{clip_scale}", "{{optimizer}}"),)),
    Panel(
        "Skipped and non-finite steps",
        (
            ("increase({steps_skipped}[5m])", "skipped: {{reason}}"),
            ("increase({nonfinite_steps}[5m])", "not finite"),
            ("{nonfinite_elements}", "elements not finite"),
        ),
    ),
    Panel("Loss scale", (("{loss_scale}", "{{optimizer}}"),), log=True),
    Panel("Findings", (("{findings}", "{{rule}} {{severity}}"),), kind="table"),
    Panel("Steps per second", (("rate({steps}[1m])", "{{optimizer}}"),)),
    Panel("Step time", (("{step_duration_seconds}", "{{optimizer}}"),), unit="seconds"),
    Panel(
        "Time that watching takes",
        (("rate({overhead_seconds}[5m])", "{{optimizer}}"),),
        unit="ratio",
        help="Seconds of gradmedic's own for each second of the run.",
    ),
    Panel("Micro-batches", (("{micro_batches}", "{{optimizer}}"),)),
    Panel("Logged", (("{logged}", "{{key}}"),), help="What the script passes to monitor.log."),
    Panel("Last step", (("{last_step}", "{{optimizer}}"),), kind="stat"),
    Panel(
        "Since the last step",
        (("time() - {last_step_timestamp_seconds}", "{{optimizer}}"),),
        unit="seconds",
        kind="stat",
    ),
)


def expression(query: str) -> str:
    """Return the PromQL of a query: full names, each limited to the runs that are chosen.

    Run and metric are joined by `instance`, which Prometheus gives to both.

    Raises:
        KeyError: the metric table has no such metric.
    """

    def named(match: re.Match[str]) -> str:
        metric = _METRICS[match.group(1)]
        return metric.full_name + '{instance=~"$instance"}'

    return re.sub(r"\{(\w+)\}", named, query)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    info = _METRICS["run"].full_name
    return {
        "title": "gradmedic",
        "uid": "gradmedic",
        "tags": ["pytorch", "training"],
        "description": "Gradients of a training run; made by deploy/make_dashboard.py.",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                _variable("run", f"label_values({info}, run)"),
                _variable("instance", f"label_values({info}{{{_CHOSEN}}}, instance)"),
            ]
        },
        "panels": [_panel(at, panel) for at, panel in enumerate(PANELS)],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": _source(),
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "current": {"text": "All", "value": "$__all"},
        "sort": 2,
    }


def _source() -> dict[str, str]:
    return {"type": "prometheus", "uid": "${datasource}"}


def _panel(at: int, panel: Panel) -> dict[str, Any]:
    per_row = 24 // _WIDTH
    defaults: dict[str, Any] = {"unit": _UNITS[panel.unit]}
    if panel.kind == "timeseries":
        scale = {"type": "log", "log": 10} if panel.log else {"type": "linear"}
        # A gap is a value that is not known or not finite: never a line across it.
        defaults["custom"] = {"scaleDistribution": scale, "spanNulls": False, "showPoints": "auto"}
    return {
        "id": at + 1,
        "title": panel.title,
        "description": panel.help,
        "type": panel.kind,
        "datasource": _source(),
        "gridPos": {"x": _WIDTH * (at % per_row), "y": _HEIGHT * (at // per_row), "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {},
        "targets": [_target(n, query, legend, panel.kind) for n, (query, legend) in enumerate(panel.queries)],
    }


def _target(at: int, query: str, legend: str, kind: str) -> dict[str, Any]:
    table = {"instant": True, "format": "table"} if kind == "table" else {}
    return {
        "refId": chr(ord("A") + at),
        "datasource": _source(),
        "expr": expression(query),
        "legendFormat": legend,
        **table,
    }


def main() -> int:
    """Write or check the file; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the Grafana dashboard from gradmedic's metric table.")
    parser.add_argument("--check", action="store_true", help="fail when the file is not current")
    text = json.dumps(dashboard(), indent=2) + "\n"
    if parser.parse_args().check:
        current = OUTPUT.exists() and OUTPUT.read_text(encoding="utf-8") == text
        print(f"{OUTPUT.name} is {'current' if current else 'not current: run make_dashboard.py'}")
        return 0 if current else 1
    OUTPUT.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
