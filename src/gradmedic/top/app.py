"""The live view: reads, draws, waits for a key; and the same once, for where there is no terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live

from gradmedic.record.run import open_run
from gradmedic.top.follow import Follower, Snapshot
from gradmedic.top.glyphs import ASCII, Glyphs, glyphs_for
from gradmedic.top.judging import Judge
from gradmedic.top.newer import newest_run
from gradmedic.top.screen import page_of, screen_lines
from gradmedic.top.terminal import Keyboard
from gradmedic.top.view import View, chosen, clamped, press

#: Reading and drawing take at most one part in so many of the time, however large the run.
_SHARE = 10
#: Tensors that are printed where the screen is no terminal; and a height that has room for all above them.
_ONCE_ROWS, _TALL = 20, 64
#: Seconds to wait for a diagnosis where the state is printed once.
_PATIENCE = 20.0


def show_once(path: Path, console: Console, *, lang: str = "en", glyphs: Glyphs | None = None) -> None:
    """Print the state of a run once, without taking over the screen.

    Args:
        path: a run folder, or a folder that holds some (the newest is taken).
        console: where to print; at most as wide as it is.
        lang: "en" or "zh".
        glyphs: signs; None: what the console's encoding can show.

    Raises:
        InputError: there is no run.
    """
    if newest_run(path)[0] is None:
        open_run(path)  # says what is wrong
    drawn = _glyphs(console) if glyphs is None else glyphs
    words, view, width = _language(lang, drawn), View(), console.width
    judge = Judge(words)
    follower = Follower(path, judge.findings)
    snapshot = follower.poll()
    judge.consider(snapshot.path, _step(snapshot), ended=True)
    judge.wait(_PATIENCE)
    follower.judged()
    above = _TALL - page_of(snapshot, view, width, _TALL, drawn, words)
    height = max(24, above + min(len(snapshot.layers.rows), _ONCE_ROWS))
    lines = screen_lines(snapshot, view, width, height, drawn, words)[:-1]  # without the keys
    while lines and not lines[-1].plain.strip():
        lines.pop()
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def watch_run(
    path: Path, console: Console, *, lang: str = "en", interval: float = 1.0, glyphs: Glyphs | None = None
) -> int | None:
    """Show a run on the whole screen, live, until q, Ctrl-C or a signal.

    Args:
        path: a run folder, one that will be there later, or a folder that holds some (the newest is taken).
        console: a terminal.
        lang: "en" or "zh".
        interval: seconds between two looks, > 0; more where a look takes longer than a tenth of that.
        glyphs: signs; None: what the terminal can show.

    Returns:
        The signal that ended it, None when the person did.

    Raises:
        InputError: `path` is a file.
    """
    if path.is_file():
        open_run(path)  # says so
    drawn = _glyphs(console) if glyphs is None else glyphs
    words = _language(lang, drawn)
    judge = Judge(words)
    app = _App(Follower(path, judge.findings), judge, console, drawn, words, interval)
    live = Live(console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
    with Keyboard() as keyboard, contextlib.suppress(KeyboardInterrupt), live:
        app.loop(live, keyboard)
    return keyboard.ended_by


class _App:
    """State of the loop: what was read last, what the person has chosen, when to look again."""

    def __init__(
        self, follower: Follower, judge: Judge, console: Console, glyphs: Glyphs, lang: str, interval: float
    ) -> None:
        self._follower, self._judge = follower, judge
        self._console, self._glyphs, self._lang, self._interval = console, glyphs, lang, interval
        self._view = View()
        self._snapshot = follower.snapshot
        self._due = 0.0

    def loop(self, live: Live, keyboard: Keyboard) -> None:
        """Read, draw and take keys until told to leave."""
        while not self._view.quitting and keyboard.ended_by is None:
            began = time.monotonic()
            looking = began >= self._due
            if looking and not self._view.paused:
                self._look()
            live.update(self._screen(), refresh=True)
            now = time.monotonic()
            if looking:
                self._due = began + max(self._interval, _SHARE * (now - began))
            for key in keyboard.wait(self._due - now):
                self._press(key)
            keyboard.suspend_if_asked(live.stop, lambda: live.start(refresh=True))

    def _look(self) -> None:
        self._snapshot = self._follower.poll()
        if self._judge.has_news():
            self._follower.judged()
        self._judge.consider(self._snapshot.path, _step(self._snapshot), ended=self._snapshot.state == "ended")

    def _screen(self) -> Group:
        width, height = self._console.size
        return Group(*screen_lines(self._snapshot, self._view, width, height, self._glyphs, self._lang))

    def _press(self, key: str) -> None:
        if key == "n" and self._view.typing is None:
            if self._follower.take_newer():
                self._snapshot, self._view = self._follower.snapshot, replace(self._view, offset=0, paused=False)
            return
        width, height = self._console.size
        page = page_of(self._snapshot, self._view, width, height, self._glyphs, self._lang)
        rows = len(chosen(self._snapshot.layers, self._view))
        view = press(self._view, key, page)
        self._view = replace(view, offset=clamped(view.offset, rows, page))


def end_by(number: int) -> None:
    """End this process by a signal, as it would have ended without us: its parent can tell."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _step(snapshot: Snapshot) -> int:
    return sum(len(each.steps) for each in snapshot.scalars.values()) - 1


def _glyphs(console: Console) -> Glyphs:
    return glyphs_for(console.encoding, os.environ.get("TERM", "")) if console.is_terminal else _by_encoding(console)


def _by_encoding(console: Console) -> Glyphs:
    return glyphs_for(getattr(console.file, "encoding", None) or "utf-8")


def _language(lang: str, glyphs: Glyphs) -> str:
    """Return the language that can be shown: Chinese needs more than ASCII."""
    return "en" if glyphs is ASCII and lang == "zh" else lang
