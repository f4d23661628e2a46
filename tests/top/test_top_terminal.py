"""The whole of it in a real terminal: it draws, takes keys, and gives the terminal back however it ends."""

from __future__ import annotations

import os
import re
import select
import signal
import struct
import subprocess
import sys
import time

import pytest
from rich.console import Console
from top_runs import frame, recorder_of, write_run

from gradmedic.errors import InputError
from gradmedic.top import watch_run
from heeding import heed_interrupts

fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

PROGRAM = """
import argparse, sys
from gradmedic.cli.top import TopCommand
parser = argparse.ArgumentParser()
TopCommand().prepare_parser(parser)
sys.exit(TopCommand().run(parser.parse_args(), parser))
"""
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"
SHOW_CURSOR, HIDE_CURSOR = b"\x1b[?25h", b"\x1b[?25l"


class Terminal:
    """A pseudo-terminal with `gradmedic top` in it."""

    def __init__(self, *words, size=(24, 80), **changes):
        self.main, self.side = os.openpty()
        self.resize(*size, tell=False)
        self.before = termios.tcgetattr(self.side)
        environment = {**os.environ, "TERM": "xterm-256color", "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8", **changes}
        for name in ("NO_COLOR", "COLUMNS", "LINES"):
            environment.pop(name, None)
        environment.update(changes)
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *map(str, words), "--lang", "en", "--interval", "0.1"],
            stdin=self.side,
            stdout=self.side,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            preexec_fn=heed_interrupts,
        )
        self.data = b""

    def resize(self, rows, columns, tell=True):
        self.rows = rows
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        if tell:
            self.process.send_signal(signal.SIGWINCH)

    def press(self, text):
        os.write(self.main, text.encode())

    def until(self, text, timeout=30.0):
        """Read until the latest screen is whole and has a text in it, and return that screen's lines."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            self.read(0.1)
            screen = self.screen()
            if len(screen) >= self.rows and text in "\n".join(screen):
                return screen
        raise AssertionError(f"no {text!r} on\n" + "\n".join(self.screen()))

    def screen(self):
        latest = self.data.split(b"\x1b[H")[-1].decode("utf-8", "replace")
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", latest).split("\r\n")

    def read(self, timeout):
        while select.select([self.main], [], [], timeout)[0]:
            try:
                self.data += os.read(self.main, 65536)
            except OSError:
                return
            timeout = 0.0

    def end(self):
        code = self.process.wait(20)
        self.read(0.2)
        error = self.process.stderr.read().decode()
        self.process.stderr.close()
        restored = termios.tcgetattr(self.side) == self.before
        os.close(self.main)
        os.close(self.side)
        return code, restored, error


def test_from_before_the_run_to_q(tmp_path):
    terminal = Terminal(tmp_path / "run")
    terminal.until("waiting for")
    recorder = recorder_of(tmp_path / "run")
    recorder.put(frame(0), keep=True)
    recorder.flush(10)
    terminal.until("step 0")
    recorder.put(frame(1), keep=True)
    recorder.flush(10)
    began = time.monotonic()
    screen = terminal.until("step 1")
    assert time.monotonic() - began < 5
    assert len(screen) == 24
    terminal.press("s")
    terminal.until("sort: order")
    terminal.press("ftok\r")
    assert any(line.startswith("tensors 1-1 of 1") for line in terminal.until("filter: tok"))
    terminal.press("p")
    terminal.until("[paused]")
    terminal.resize(12, 50)
    terminal.until("…")
    assert len(terminal.screen()) == 12
    # No shell is there to stop it: it leaves the screen, goes on at once, and takes the screen again.
    terminal.data = b""
    terminal.process.send_signal(signal.SIGTSTP)
    terminal.until("[paused]")
    assert terminal.data.index(LEAVE) < terminal.data.index(ENTER)
    terminal.press("q")
    code, restored, error = terminal.end()
    assert (code, restored, error) == (0, True, "")
    assert terminal.data.rindex(LEAVE) > terminal.data.rindex(ENTER)
    assert terminal.data.rindex(SHOW_CURSOR) > terminal.data.rindex(HIDE_CURSOR)
    recorder.close()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, -15), (signal.SIGINT, 0)])
def test_signals_leave_the_terminal_as_it_was(tmp_path, number, code):
    terminal = Terminal(write_run(tmp_path / "run"))
    terminal.until("ended")
    terminal.process.send_signal(number)
    assert terminal.end() == (code, True, "")
    assert LEAVE in terminal.data
    assert SHOW_CURSOR in terminal.data


def test_without_colour_on_an_old_terminal(tmp_path):
    terminal = Terminal(write_run(tmp_path / "run"), TERM="vt100")
    screen = terminal.until("ended")
    terminal.press("q")
    assert terminal.end() == (0, True, "")
    assert "\n".join(screen).isascii()
    assert not re.search(rb"\x1b\[[0-9;]*(3[0-7]|9[0-7])[0-9;]*m", terminal.data)


def test_a_dumb_terminal_gets_plain_text_once(tmp_path):
    terminal = Terminal(write_run(tmp_path / "run"), TERM="dumb")
    code, restored, error = terminal.end()
    assert (code, restored, error) == (0, True, "")
    assert b"\x1b" not in terminal.data
    assert b"run  ended" in terminal.data


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(InputError, match="is a file"):
        watch_run(tmp_path / "run", Console())
