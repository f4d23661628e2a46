"""How fast the report answers in a browser: milliseconds from a choice to the drawn page, for the two long runs.

    python -m benchmarks.report_browser [--runs FOLDER] [--repeat N]

Uses the runs of benchmarks/report.py (made when they are not there yet). For each action: wall time, from the change of
the control to the second frame after it; the processor time of the page's thread, which other load on the machine
changes less; and what no load changes, how many figures were drawn and how many points they have. Chromium is found as
the tests find it (GRADMEDIC_CHROMIUM, chromium, google-chrome).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.report import SIZES, make
from playwright.sync_api import sync_playwright

from gradmedic.record import open_run
from gradmedic.report.page.payload import build_payload
from gradmedic.report.page.render import render_page

#: Section in view, what is done, and the change that the control makes.
ACTIONS = (
    ("heatmap", "choose a layer", "{tensor: N}"),
    ("heatmap", "another metric", "{metric: N % 2 ? 'max_abs' : 'norm'}"),
    ("heatmap", "worst first", "{sort: N % 2 ? 'worst' : 'order'}"),
    ("heatmap", "join by block", "{group: N % 2 ? 'blocks' : 'tensors'}"),
    ("heatmap", "filter", "{filter: N % 2 ? 'blocks.1*' : ''}"),
    ("flow", "another step", "{step: 10 + N}"),
    ("distribution", "another step", "{step: 100 * N}"),
    ("evolution", "choose a layer", "{tensor: N}"),
    ("ratio", "another step", "{step: 10 + N}"),
    ("tree", "search", "{search: N % 2 ? 'attn' : ''}"),
    ("loss", "logarithmic", "{logLoss: N % 2 === 1}"),
)
CHANGE = """async () => {
    gradmedic.drawn = { figures: [], points: 0 };
    const began = performance.now();
    gradmedic.set(%s);
    await new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(resolve)));
    const answered = performance.now() - began;
    while (document.body.dataset.settled !== 'true') await new Promise(resolve => setTimeout(resolve, 5));
    return [answered, gradmedic.drawn.figures.length, gradmedic.drawn.points];
}"""
OPENED = "[gradmedic.drawn.figures.length, gradmedic.drawn.points]"
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


def chromium():
    names = [os.environ.get("GRADMEDIC_CHROMIUM"), "chromium", "google-chrome"]
    found = next((path for path in map(shutil.which, filter(None, names)) if path), None)
    if found is None:
        raise SystemExit("no Chromium found: install one, or name it in GRADMEDIC_CHROMIUM")
    return found


def measure(browser, address, repeat):
    """Yield (action, median wall milliseconds, median processor milliseconds, figures, points)."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def processor():
        return {entry["name"]: entry["value"] for entry in session.send("Performance.getMetrics")["metrics"]}[
            "TaskDuration"
        ]

    began = time.perf_counter()
    page.goto(address)
    page.wait_for_selector("body[data-settled=true]")
    yield "open the page", 1000 * (time.perf_counter() - began), 1000 * processor(), *page.evaluate(OPENED)
    for section, what, change in ACTIONS:
        page.evaluate(f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}})")
        page.wait_for_timeout(600)
        walls, cores = [], []
        for at in range(1, repeat + 1):
            before = processor()
            wall, figures, points = page.evaluate(CHANGE % change.replace("N", str(at)))
            walls.append(wall)
            cores.append(1000 * (processor() - before))
        yield f"{section}: {what}", statistics.median(walls), statistics.median(cores), figures, points
    page.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path(tempfile.gettempdir()) / "gradmedic-report-runs")
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=chromium(), args=SWITCHES)
        for name, (tensors, steps) in SIZES.items():
            run = args.runs / f"{tensors}x{steps}"
            if not (run / "run.json").exists():
                make(run, tensors, steps)
            file = Path(folder) / f"{tensors}.html"
            file.write_text(render_page([build_payload(open_run(run), [])]), encoding="utf-8")
            print(
                f"{name}: {file.stat().st_size / 1e6:.1f} MB, Chromium {browser.version}, load {os.getloadavg()[0]:.1f}"
            )
            for action, wall, core, figures, points in measure(browser, file.as_uri(), args.repeat):
                drawn = f"{figures} figures, {points:,} points"
                print(f"  {action:<32} {wall:7.0f} ms  processor {core:6.0f} ms  {drawn}")
        browser.close()


if __name__ == "__main__":
    main()
