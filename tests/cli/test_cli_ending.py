"""A command that is ended by a signal leaves nothing half done behind, and ends by that signal."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from gradmedic.cli.ending import putting_away
from heeding import heed_interrupts

EXPORT = """
import pathlib, sys, time
from gradmedic.export.target import new_folder
from gradmedic.cli.ending import putting_away
with putting_away(), new_folder(pathlib.Path(sys.argv[1]) / "out", force=False) as work:
    (work / "half").write_text("half")
    print("ready", flush=True)
    time.sleep(30)
"""
PAGE = """
import os, pathlib, sys, time
from gradmedic.cli import outputs
def slow(*_):
    print("ready", flush=True)
    time.sleep(30)
os.replace = slow
outputs.write_output(pathlib.Path(sys.argv[1]) / "page.html", "text")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("program", [EXPORT, PAGE], ids=["export", "page"])
def test_nothing_is_left(tmp_path, program, number):
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts) as process:
        assert process.stdout.readline() == "ready\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        assert process.wait(20) == -number
    assert list(tmp_path.iterdir()) == []


def test_handlers_are_as_they_were():
    """Those of somebody else, and signals that are ignored, are left alone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    ours = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with putting_away():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) is before[signal.SIGTERM]
        with pytest.raises(KeyError), putting_away():
            raise KeyError
        assert signal.getsignal(signal.SIGTERM) is before[signal.SIGTERM]
    finally:
        signal.signal(signal.SIGHUP, ours)


def test_in_another_thread_nothing_is_changed():
    seen = []

    def work():
        with putting_away():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]
