"""The tables of docs/stability.md, made from the results on file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import stability_outcome as measure
from stability_methods import CANDIDATES, GUARD, GUARDED, PUBLISHED, default_name
from stability_outcome import Outcome, outcome, published
from stability_settings import AGGRESSIVE, HEALTHY, LOOK, SETTINGS, TARGETS
from stability_statistics import Interval
from stability_store import Key, Run
from stability_tasks import TASKS

#: Row of a table -> its outcomes.
Rows = dict[str, list[Outcome]]


def complete(runs: dict[Key, Run]) -> dict[Key, Run]:
    """Keep tasks and seeds of which every method has run, so that all rows stand on the same ground."""
    wanted = {(s.name, name) for s in SETTINGS["digits"] if s.spoil for name in (*GUARDED, *CANDIDATES)}
    heats: dict[tuple[str, int], set[tuple[str, str]]] = {}
    for key in runs:
        heats.setdefault((key.task, key.seed), set()).add((key.setting, key.method))
    return {key: run for key, run in runs.items() if wanted <= heats[key.task, key.seed]}


def select(runs: dict[Key, Run], method: str, settings: Sequence[str], *, guarded: bool = True) -> list[Outcome]:
    """Return the outcomes of one method."""
    chosen = [run for key, run in runs.items() if key.method == method and key.setting in settings]
    return [outcome(run if guarded else published(run, LOOK), TARGETS[run.key.task], LOOK) for run in chosen]


def rows(runs: dict[Key, Run], settings: Sequence[str] = AGGRESSIVE) -> tuple[Rows, Rows]:
    """Return the methods as published with the default, and behind the guard with the candidates."""
    plain = {name: select(runs, GUARD + name, settings, guarded=False) for name in PUBLISHED}
    plain["**default**"] = select(runs, default_name(), settings)
    guarded = {name: select(runs, name, settings) for name in (*GUARDED, *CANDIDATES)}
    return plain, {f"**{n}** (default)" if n == default_name() else n: found for n, found in guarded.items()}


def percent(interval: Interval, digits: int = 0) -> str:
    """Return "93 % [90, 95]"."""
    if math.isnan(interval.value):
        return "–"
    value, low, high = (f"{100 * x:.{digits}f}" for x in interval)
    return f"{value} % [{low}, {high}]"


def points(interval: Interval, digits: int = 1) -> str:
    """Return a difference of shares in percentage points."""
    value, low, high = (f"{100 * x:+.{digits}f}" for x in interval)
    return f"{value} [{low}, {high}]"


def number(interval: Interval) -> str:
    """Return "0.43 [0.40, 0.47]"."""
    return "–" if math.isnan(interval.value) else "{:.2f} [{:.2f}, {:.2f}]".format(*interval)


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def of_task(outcomes: Sequence[Outcome], task: str) -> list[Outcome]:
    """Return those of one task."""
    return [each for each in outcomes if each.key.task == task]


def pooled_table(table: Rows, base: str, per_epoch: dict[str, float]) -> str:
    """Return one row for each method, over both tasks and the three settings."""
    head = ["method", "stable", "final accuracy, digits", "text", "epochs to target", f"epochs against `{base}`"]
    body = []
    for name, found in table.items():
        finals = [percent(measure.final_accuracy(of_task(found, task)), 1) for task in TASKS]
        against = "1" if name == base else number(measure.epochs_ratio(found, table[base]))
        epochs = number(measure.epochs(found, per_epoch))
        body.append([name, percent(measure.stable_share(found)), *finals, epochs, against])
    return markdown(head, body)


def difference_table(table: Rows, ours: str) -> str:
    """Return how far each method is from ours, over the same tasks, settings and seeds."""
    head = ["method", "stable, points", *(f"final accuracy, {task}, points" for task in TASKS), "epochs to target"]
    body = []
    for name, found in table.items():
        if name != ours:
            stable = points(measure.stable_difference(found, table[ours]))
            finals = [points(each) for each in final_differences(found, table[ours]).values()]
            body.append([name, stable, *finals, number(measure.epochs_ratio(found, table[ours]))])
    return markdown(head, body)


def final_differences(ours: Sequence[Outcome], theirs: Sequence[Outcome]) -> dict[str, Interval]:
    """Return the differences of the mean final accuracy by task."""
    return {task: measure.final_difference(of_task(ours, task), of_task(theirs, task)) for task in TASKS}


def ahead(table: Rows, ours: str) -> list[str]:
    """Return where a method is better than ours by more than the interval of the difference."""
    found = []
    for name in table.keys() - {ours}:
        stable = measure.stable_difference(table[name], table[ours])
        epochs = measure.epochs_ratio(table[name], table[ours])
        finals = final_differences(table[name], table[ours])
        found += [f"{name}: stable {points(stable)} points"] * (stable.low > 0)
        found += [
            f"{name}: final accuracy, {task}, {points(each)} points" for task, each in finals.items() if each.low > 0
        ]
        found += [f"{name}: epochs to target {number(epochs)}"] * (epochs.high < 1)
    return sorted(found)


def cell_table(runs: dict[Key, Run]) -> str:
    """Return the stable share for each task and setting."""
    cells = [(task, setting) for task in TASKS for setting in AGGRESSIVE]
    head = ["method", *(f"{task}: {setting}" for task, setting in cells)]
    by_cell = [[of_task(found, task) for found in _all_rows(runs, setting)] for task, setting in cells]
    names = [*(f"{name}, as published" for name in PUBLISHED), *GUARDED, *CANDIDATES]
    shares = [[percent(measure.stable_share(column[at])) for column in by_cell] for at in range(len(names))]
    return markdown(head, [[name, *row] for name, row in zip(names, shares, strict=True)])


def _all_rows(runs: dict[Key, Run], setting: str) -> list[list[Outcome]]:
    plain, guarded = rows(runs, [setting])
    return [*list(plain.values())[: len(PUBLISHED)], *guarded.values()]


def healthy_table(runs: dict[Key, Run]) -> str:
    """Return the final accuracy without spoiled batches and at a moderate learning rate."""
    bare = select(runs, GUARD + "none", [HEALTHY])
    body = []
    for name in sorted({key.method for key in runs if key.setting == HEALTHY} - {GUARD + "none"}):
        ours = select(runs, name, [HEALTHY])
        for task in TASKS:
            a, b = of_task(ours, task), of_task(bare, task)
            finals = [percent(measure.final_accuracy(each), 1) for each in (b, a)]
            difference = points(measure.final_difference(a, b), 2)
            body.append([name, task, str(len(a)), *finals, difference, number(measure.epochs_ratio(a, b))])
    return markdown(["method", "task", "seeds", "without", "with it", "difference, points", "epochs"], body)


def bars(plain: Rows, guarded: Rows, ours: str, runs: dict[Key, Run]) -> str:
    """Return what was asked of the default, and what came."""
    default, bare = plain["**default**"], plain["none"]
    saved = measure.epochs_ratio(default, bare)
    both = sum(a.stable and b.stable for a, b in measure.pairs(default, bare))
    healthy = [select(runs, name, [HEALTHY]) for name in (default_name(), GUARD + "none")]
    cost = [f"{task} {points(each, 2)} points" for task, each in final_differences(*healthy).items()]
    share, none = percent(measure.stable_share(default)), percent(measure.stable_share(bare))
    body = [
        ["stable at least 92 %, where without clipping at most 40 % are", f"{share} against {none}"],
        ["at least 24 % fewer epochs than without clipping, where both are stable", f"{saving(saved)}; {both} runs"],
        ["no method is better by more than the interval", "; ".join(ahead(guarded, ours)) or "none is"],
        ["healthy settings: no accuracy lost", "; ".join(cost)],
    ]
    return markdown(["asked of the default", "found"], body)


def saving(found: Interval) -> str:
    """Return a ratio of epochs as "31 % [25, 36] fewer"."""
    return percent(Interval(1 - found.value, 1 - found.high, 1 - found.low)) + " fewer"


def fill(page: str, parts: dict[str, str]) -> str:
    """Put each part between its markers, `<!-- name -->` and `<!-- /name -->`."""
    for name, part in parts.items():
        whole = re.compile(rf"<!-- {name} -->\n.*?<!-- /{name} -->", re.DOTALL)
        if not whole.search(page):
            raise LookupError(f"stability.md: expected the markers <!-- {name} --> and <!-- /{name} -->, found none")
        before, after = whole.split(page, maxsplit=1)
        page = f"{before}<!-- {name} -->\n{part}\n<!-- /{name} -->{after}"
    return page


def write_report(all_runs: dict[Key, Run], docs: Path) -> None:
    """Fill in docs/stability.md, print its tables, and draw the plot."""
    from stability_plot import draw

    runs = complete(all_runs)
    per_epoch = {name: make().steps_per_epoch for name, make in TASKS.items()}
    plain, guarded = rows(runs)
    ours = next(name for name in guarded if name.endswith("(default)"))
    seeds = {task: len({key.seed for key in runs if key.task == task}) for task in TASKS}
    parts = {
        "seeds": ", ".join(f"{count} seeds of {task}" for task, count in seeds.items()) + f", {len(runs)} runs.",
        "bars": bars(plain, guarded, ours, runs),
        "published": pooled_table(plain, "none", per_epoch),
        "guarded": pooled_table(guarded, GUARD + "none", per_epoch),
        "differences": difference_table(guarded, ours),
        "cells": cell_table(runs),
        "healthy": healthy_table(runs),
    }
    page = docs / "stability.md"
    page.write_text(fill(page.read_text(encoding="utf-8"), parts), encoding="utf-8")
    for part in parts.values():
        print(part, end="\n\n")
    print(draw(plain, guarded, docs / "images" / "stability.png"))
