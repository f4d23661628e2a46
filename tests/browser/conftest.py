"""One headless Chromium for all tests of the page."""

from __future__ import annotations

import os
import shutil

import browser_runs
import pytest
from playwright.sync_api import sync_playwright

from gradmedic.record import open_run
from gradmedic.report.page.payload import build_payload
from gradmedic.report.page.render import render_page

SWITCHES = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str:
    """Path of a Chromium or Chrome on this machine."""
    named = os.environ.get("GRADMEDIC_CHROMIUM")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"]
    for name in names:
        path = shutil.which(name)
        if path:
            return path
    wanted = named or "chromium or google-chrome"
    pytest.fail(
        f"the page is tested in a real browser, and there is no {wanted}: install one (Debian, Ubuntu: "
        "apt-get install chromium), or name its program in GRADMEDIC_CHROMIUM"
    )


@pytest.fixture(scope="session")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=SWITCHES)
        yield browser
        browser.close()


class Made(dict):
    """What `make(name)` gives, made when it is first asked for: processes that run other tests need not all of it."""

    def __init__(self, make):
        super().__init__()
        self._make = make

    def __missing__(self, name):
        self[name] = self._make(name)
        return self[name]


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """Run folders by name."""
    root = tmp_path_factory.mktemp("runs")

    def torn(folder):
        browser_runs.record(root / "whole", browser_runs.many_names(20), 60, torn=folder)
        return folder

    makers = {
        "healthy": browser_runs.train,
        "exploding": browser_runs.explode,
        "many": lambda folder: browser_runs.record(folder, browser_runs.many_names(1000), 40),
        "empty": browser_runs.empty,
        "hostile": lambda folder: browser_runs.record(folder, browser_runs.hostile_names(), 60, ("adam<b>", "sgd")),
        "torn": torn,
    }
    return Made(lambda name: makers[name](root / name))


@pytest.fixture(scope="session")
def payloads(runs):
    """What the page shows of each run."""
    return Made(lambda name: build_payload(open_run(runs[name])))


@pytest.fixture(scope="session")
def report_file(payloads, tmp_path_factory):
    """Write a report of runs and return its address."""
    root = tmp_path_factory.mktemp("pages")

    def write(*names, lang="en"):
        file = root / f"{'-'.join(names)}-{lang}.html"
        if not file.exists():
            file.write_text(render_page([payloads[name] for name in names], lang=lang), encoding="utf-8")
        return file.as_uri()

    return write


class Reader:
    """A page, and what it complained of."""

    def __init__(self, page):
        self.page = page
        self.complaints = []
        page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text) if message.type in ("error", "warning", "trace") else None
            ),
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith(("file:", "data:", "blob:", "http://127.0.0.1"))
                else self.complaints.append(f"asked for {request.url}")
            ),
        )

    def open(self, address):
        self.page.goto(address)
        self.settle()

    def settle(self):
        """Wait until all that is due has been drawn."""
        self.page.evaluate("() => new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve, 0)))")
        self.page.wait_for_selector("body[data-settled=true]")

    def choose(self, **changes):
        """Change choices as the controls do."""
        self.page.evaluate("changes => gradmedic.set(changes)", changes)
        self.settle()

    def draw_all(self):
        self.page.evaluate("gradmedic.drawAll()")
        self.settle()

    def missing(self):
        """Sections that say why they are empty."""
        return set(self.page.evaluate("[...document.querySelectorAll('section.empty')].map(node => node.id)"))

    def traces(self, figure):
        """What Plotly draws in a figure: plain lists, with texts where a number is not finite."""
        return self.page.evaluate(
            """figure => {
                const list = values => values && Array.from(values);
                const cells = row => Array.from(row, value => Number.isNaN(value) ? null : value);
                return document.getElementById(`figure-${figure}`).data.map(trace => ({
                    name: trace.name, type: trace.type, x: list(trace.x), y: list(trace.y),
                    z: trace.z && trace.z.map(cells), q1: trace.q1, median: trace.median, q3: trace.q3,
                }));
            }""",
            figure,
        )

    def trace(self, figure, name):
        found = [trace for trace in self.traces(figure) if trace["name"] == name]
        assert len(found) == 1, (name, [trace["name"] for trace in self.traces(figure)])
        return found[0]


@pytest.fixture(scope="session")
def shared(chromium, report_file):
    """Readers of single runs at 1280 pixels, one for each run and all tests: opening a page takes a second."""
    opened = {}

    def get(name):
        if name not in opened:
            page = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce").new_page()
            opened[name] = Reader(page)
            opened[name].open(report_file(name))
            opened[name].page.evaluate("window.untouched = { ...gradmedic.state }")
        page = opened[name]
        page.complaints.clear()
        page.page.evaluate("gradmedic.set({ ...window.untouched, version: gradmedic.state.version + 1 })")
        page.page.evaluate("window.scrollTo({ top: 0, behavior: 'instant' })")
        page.settle()
        return page

    yield get
    for page in opened.values():
        page.page.context.close()


@pytest.fixture
def reader(chromium):
    """Make readers: `reader(width=390, dark=True)`."""
    contexts = []

    def make(width=1280, height=900, dark=False, **options):
        context = chromium.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light", **options
        )
        contexts.append(context)
        return Reader(context.new_page())

    yield make
    for context in contexts:
        context.close()
