"""The live view of a run in a terminal: `gradmedic top`.

`follow` reads what is new, `screen` draws it as lines of text, `app` does both again and again until it is told to
stop. Nothing here knows of the training process: it reads the run folder, here or over a network file system.
"""

from __future__ import annotations

from gradmedic.top.app import show_once as show_once
from gradmedic.top.app import watch_run as watch_run

__all__ = ["show_once", "watch_run"]
