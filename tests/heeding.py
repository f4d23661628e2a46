"""Processes that heed Ctrl-C, also where the tests were started in the background, by a shell that has it ignored."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """Run in the child, before its program: what it would inherit is to ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
