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
    # Plotly takes seconds to compile in a new process, and a fraction of one where it was compiled before: pages from
    # files and from servers follow each other in one process.
    "--renderer-process-limit=1",
    "--process-per-site",
    "--disable-site-isolation-trials",
    "--disable-features=IsolateOrigins,site-per-process,BackForwardCache",
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
        self.session = page.context.new_cdp_session(page)
        self.mobile = False
        self.address = None
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

    def begin(self, width=1280, height=900, dark=False, mobile=False, still=True):
        """Become the page of another reader: of that size, in that light, who has heard no complaint."""
        self.complaints.clear()
        self.page.emulate_media(
            media="screen",
            color_scheme="dark" if dark else "light",
            reduced_motion="reduce" if still else "no-preference",
        )
        if self.mobile:
            self.session.send("Emulation.clearDeviceMetricsOverride")
        self.page.set_viewport_size({"width": width, "height": height})
        self.mobile = mobile
        if mobile:
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
            self.session.send("Emulation.setDeviceMetricsOverride", size)

    def leave(self):
        """Leave the page, so that nothing goes on in it."""
        if self.address is not None:
            self.page.evaluate("window.localStorage.clear()")
        self.page.goto("about:blank")
        self.address = None

    def open(self, address):
        self.leave()
        self.page.goto(address)
        self.address = address
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
def tab(chromium):
    """The one page of all tests."""
    page = chromium.new_context().new_page()
    yield Reader(page)
    page.context.close()


#: Shows a run as it is when the page opens, whatever was chosen before.
SHOW = """index => {
    window.untouched = window.untouched || { ...gradmedic.state };
    gradmedic.set({ ...window.untouched, run: String(index), other: "", version: gradmedic.state.version + 1 });
    const payload = gradmedic.payload();
    const optimizer = payload.optimizers[0] || "";
    gradmedic.set({ optimizer, tensor: gradmedic.worstTensor(payload), step: null, page: 0 });
    for (const node of document.querySelectorAll(".figure")) if (node.zoom) node.zoom = {};
    window.scrollTo({ top: 0, behavior: "instant" });
}"""


@pytest.fixture
def shared(request, tab, report_file):
    """Show a run of the module's RUNS: all of them are in one report, since to open one takes a second."""
    names = request.module.RUNS

    def show(name, **reader):
        tab.begin(**reader)
        address = report_file(*names)
        if tab.address != address:
            tab.open(address)
        tab.page.evaluate(SHOW, names.index(name))
        tab.settle()
        return tab

    return show


@pytest.fixture
def reader(tab):
    """Make the page that of a new reader: `reader(width=390, mobile=True)`."""

    def make(**options):
        tab.leave()
        tab.begin(**options)
        return tab

    yield make
    tab.leave()
