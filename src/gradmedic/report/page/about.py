"""What is known of the run as a whole: name, script, length, cost, environment."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np

from gradmedic.diagnosis.limits import recorded_limits
from gradmedic.record.arrays import codes_of, starts_of_groups, to_numpy
from gradmedic.record.segments import ordinals_of
from gradmedic.report.views.order import TensorRow
from gradmedic.report.views.scalars import Scalars
from gradmedic.report.views.source import Source

_ENVIRONMENT = ("gradmedic", "python", "torch", "numpy", "platform", "host", "pid", "threads", "cuda", "command")
_MOST_PROBLEMS = 50
#: Curves of logged names for each optimizer.
MOST_LOGGED = 40


def about(source: Source, scalars: Mapping[str, Scalars]) -> dict[str, Any]:
    """Return the "run" entry of the payload, as far as scalars and events tell it."""
    run, meta = source.run, source.run.meta
    times = (each.time[np.isfinite(each.time)] for each in scalars.values())
    last = max((float(each.max()) for each in times if len(each)), default=None)
    end = _end(source)
    problems = [*run.problems, *_damaged(meta), *_told(source.events), *_left_out(scalars)]
    return {
        "name": run.path.name if run.path is not None else "",
        "path": str(run.path) if run.path is not None else "",
        "script": _script(meta.get("command")),
        "begun": _number(meta.get("created")),
        "last": last,
        "ended": end is not None,
        "reason": str(end.get("reason") or "") if end is not None else None,
        "steps": steps_made(source),
        "seconds": _seconds(scalars),
        "parameters": None,
        "tensors": None,
        "overhead": _overhead(scalars),
        "problems": problems[:_MOST_PROBLEMS],
        "processes": len(codes_of(run.steps["process"])[1]),
        "ranks": _ranks(source),
        "environment": _environment(meta),
        "thinned": steps_made(source) > source.steps.num_rows,
    }


def sizes(source: Source, rows: list[TensorRow]) -> dict[str, Any]:
    """Return what the tensor tables add to it."""
    trained = [row for row in rows if row.trainable]
    return {
        "parameters": sum(row.numel for row in trained) if rows else None,
        "tensors": len(trained) if rows else None,
        "thinned": _thinned_tables(source),
    }


def steps_made(source: Source) -> int:
    """Return how many steps all optimizers made, those included that the record has thinned out."""
    table = source.steps
    if not table.num_rows:
        return 0
    ordinals = ordinals_of(table)
    owners, processes = codes_of(table["optimizer"])[0], codes_of(table["process"])[0]
    groups = np.unique(np.stack([owners, processes]), axis=1, return_inverse=True)[1].reshape(-1)
    last = np.full(groups.max() + 1, -1, dtype=np.int64)
    np.maximum.at(last, groups, ordinals)
    return max(int((last + 1).sum()), 0) or int(table.num_rows)


def _thinned_tables(source: Source) -> bool:
    """Whether tables are missing between those that are left: they were asked for, and given up for room."""
    table = source.tensors
    ordinals = ordinals_of(table)
    owners, processes = codes_of(table["optimizer"])[0], codes_of(table["process"])[0]
    starts = starts_of_groups(owners, processes, ordinals)
    groups = np.stack([owners[starts], processes[starts], ordinals[starts]])
    kept, count = np.unique(groups[:2, groups[2] >= 0], axis=1, return_counts=True)
    for (owner, process), tables in zip(kept.T.tolist(), count.tolist(), strict=True):
        mine = (groups[0] == owner) & (groups[1] == process)
        if groups[2, mine].max() + 1 > tables:
            return True
    return False


def _end(source: Source) -> dict[str, Any] | None:
    """Return the event that ended the run: the word of the process of the last steps, whatever a clock said."""
    ends = source.run.ends
    if not source.steps.num_rows:
        return next(reversed(ends.values()), None)
    return ends.get((source.rank, str(source.steps["process"][-1].as_py())))


def _ranks(source: Source) -> list[list[int]]:
    """Return [rank, steps] of each of several ranks."""
    ranks, counts = np.unique(to_numpy(source.run.steps["rank"]), return_counts=True)
    return [[int(rank), int(count)] for rank, count in zip(ranks, counts, strict=True)] if len(ranks) > 1 else []


def _damaged(meta: Mapping[str, Any]) -> list[str]:
    if meta.get("limits") is None or recorded_limits(meta) is not None:
        return []
    return ["run.json: its limits are damaged, and were left out"]


def _told(events: list[dict[str, Any]]) -> Iterable[str]:
    """Yield what the recording processes said of their own troubles."""
    for event in events:
        if event.get("kind") == "end" and event.get("problem"):
            dropped = event.get("dropped")
            yield f"{event['problem']}" + (f" ({dropped} entries lost)" if dropped else "")
        elif event.get("kind") == "error":
            yield f"{event.get('part', 'gradmedic')}: {event.get('message', '')}"


def _left_out(scalars: Mapping[str, Scalars]) -> Iterable[str]:
    """Yield how many logged names have no curve."""
    for each in scalars.values():
        if len(each.logged) > MOST_LOGGED:
            drawn = f"curves are drawn of the first {MOST_LOGGED} of them, by the alphabet"
            yield f"{each.optimizer}: {len(each.logged)} names were logged; {drawn}"


def _seconds(scalars: Mapping[str, Scalars]) -> float | None:
    """Return how long the processes trained, the time between them left out."""
    spans: dict[int, list[float]] = {}
    for each in scalars.values():
        for part in np.unique(each.parts).tolist():
            times = each.time[(each.parts == part) & np.isfinite(each.time)]
            if len(times):
                low, high = spans.get(part, [math.inf, -math.inf])
                spans[part] = [min(low, float(times.min())), max(high, float(times.max()))]
    return sum(high - low for low, high in spans.values()) if spans else None


def _overhead(scalars: Mapping[str, Scalars]) -> float | None:
    spent = waited = 0.0
    for each in scalars.values():
        seconds, own = each.columns["step_seconds"], each.columns["overhead_seconds"]
        known = np.isfinite(seconds) & np.isfinite(own)
        spent, waited = spent + float(own[known].sum()), waited + float(seconds[known].sum())
    return spent / waited if waited > 0 else None


def _script(command: Any) -> str | None:
    if not isinstance(command, list):
        return None
    named = [str(part) for part in command[1:] if str(part).endswith((".py", ".ipynb"))]
    return PurePath(named[0]).name if named else None


def _environment(meta: Mapping[str, Any]) -> list[list[str]]:
    entries = {key: meta[key] for key in _ENVIRONMENT if meta.get(key) not in (None, [], "")}
    settings = meta.get("settings")
    if isinstance(settings, dict):
        left_out = {"limits"} if _damaged(meta) else set()
        known = {key: value for key, value in settings.items() if value is not None and key not in left_out}
        entries |= {f"settings.{key}": value for key, value in known.items()}
    return [[key, _text(key, value)] for key, value in entries.items()]


def _text(key: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    if key == "command" and isinstance(value, list):
        return " ".join(map(str, value))
    return json.dumps(value, ensure_ascii=False, default=str)


def _number(value: Any) -> float | None:
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None
