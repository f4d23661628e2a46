"""The section "Crash rate" of docs/stability.md, made from the results on file."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from crash_arms import GUARDED, MAIN, PARTS, USUAL
from crash_faults import RATES
from crash_statistics import per_10_000, rate_ratio
from crash_store import Run
from stability_statistics import Interval

#: How many times fewer crashes the guard has to leave.
BAR = 12.0
ARMS = [arm.name for arm in (*MAIN, *PARTS)]


def of_arm(runs: Sequence[Run], arm: str, *, faulty: bool = True) -> list[Run]:
    """Return an arm's runs."""
    return [run for run in runs if run.key.arm == arm and run.key.faulty is faulty]


def crashes_and_steps(runs: Sequence[Run]) -> tuple[int, int]:
    """Return how many crashes in how many steps."""
    return sum(len(run.crashes) for run in runs), sum(run.steps for run in runs)


def of_shared_seeds(runs: Sequence[Run]) -> list[list[Run]]:
    """Return the runs of the usual practice and of the guard, of the seeds that both have."""
    sides = [of_arm(runs, arm.name) for arm in (USUAL, GUARDED)]
    both = {run.key.seed for run in sides[0]} & {run.key.seed for run in sides[1]}
    return [[run for run in side if run.key.seed in both] for side in sides]


def reduction(runs: Sequence[Run]) -> Interval:
    """Return how many times the crash rate of the usual practice is that of the guard, over the seeds of both."""
    shared = of_shared_seeds(runs)
    (count, steps), (other, other_steps) = (crashes_and_steps(side) for side in shared)
    return rate_ratio(count, steps, other, other_steps) if steps else Interval(math.nan, 0.0, math.inf)


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Return a table."""
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *body])


def arms_table(runs: Sequence[Run]) -> str:
    """Return one row for each arm, with and without faults."""
    head = ["arm", "steps", "crashes", "per 10,000 steps", "steps lost", "held-out loss", "steps skipped by the guard"]
    body = []
    for faulty in (True, False):
        for arm in ARMS:
            mine = of_arm(runs, arm, faulty=faulty)
            if mine:
                body.append([arm + ("" if faulty else ", no faults"), *_figures(mine)])
    return markdown(head, body)


def _figures(runs: Sequence[Run]) -> list[str]:
    count, steps = crashes_and_steps(runs)
    rate = "{:.1f} [{:.1f}, {:.1f}]".format(*per_10_000(count, steps))
    lost = f"{100 * sum(run.lost for run in runs) / steps:.0f} %"
    losses = ", ".join(f"{run.held_out:.2f}" for run in sorted(runs, key=lambda run: run.key.seed))
    return [f"{steps:,}", str(count), rate, lost, losses, str(sum(run.skipped for run in runs))]


def causes_table(runs: Sequence[Run]) -> str:
    """Return, for each kind of fault, how often it came and how many crashes followed it in each arm."""
    arms = [arm for arm in ARMS if of_arm(runs, arm)]
    causes = {arm: sum((run.crashes_by_cause() for run in of_arm(runs, arm)), Counter[str]()) for arm in arms}
    met = {arm: sum((Counter(run.faults) for run in of_arm(runs, arm)), Counter[str]()) for arm in arms}
    body = [
        [kind.value, str(rate), *(f"{causes[arm][kind.value]} of {met[arm][kind.value]}" for arm in arms)]
        for kind, rate in RATES.items()
    ]
    if any(causes[arm][""] for arm in arms):
        body.append(["none since the last restart", "", *(str(causes[arm][""]) for arm in arms)])
    return markdown(["fault", "mean number in 10,000 steps", *arms], body)


def verdict(runs: Sequence[Run]) -> str:
    """Return the sentence that says by how much the guard reduces crashes."""
    value, low, high = reduction(runs)
    if math.isnan(value):
        return "No seed has both arms on file yet."
    (count, steps), (other, other_steps) = (crashes_and_steps(side) for side in of_shared_seeds(runs))
    ratio = "" if math.isinf(value) else f"**{value:.1f}** times fewer; "
    top = "no upper end" if math.isinf(high) else f"at most {high:.0f} times"
    word = "reached" if value >= BAR and low >= BAR else "reached, its interval not" if value >= BAR else "missed"
    return (
        f"**{count}** crashes in {steps:,} steps without the guard, **{other}** in {other_steps:,} with it: "
        f"{ratio}at least **{low:.1f}** times fewer, {top} (95 % interval). Bar: {BAR:g} times; {word}."
    )


def write_section(runs: Sequence[Run], page: Path) -> str:
    """Fill the tables in between the page's `<!-- crash -->` marks, where it has them; return them."""
    tables = "\n\n".join(
        [verdict(runs), arms_table(runs), "Crashes by the last fault before them:", causes_table(runs)]
    )
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    new = re.sub(r"(<!-- crash -->\n).*?(<!-- /crash -->)", lambda m: m[1] + tables + "\n" + m[2], old, flags=re.DOTALL)
    if new != old:
        page.write_text(new, encoding="utf-8")
    return tables
