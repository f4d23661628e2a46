"""How the processes that the script starts come to be watched: through their environment.

Reached are all python processes that inherit the environment: `subprocess`, `multiprocessing` with spawn and
forkserver, `torch.multiprocessing`, torchrun inside the script. Not reached: those started with an environment
of their own, or with `python -I`, `-E` or `-S`. Forked processes inherit the watching itself.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from dataclasses import replace
from pathlib import Path

from gradmedic.cli.options import RunOptions

OPTIONS_VARIABLE = "GRADMEDIC_CHILD"
CHILD_FOLDER = str(Path(__file__).resolve().parent / "child")


def reach_children(options: RunOptions, environment: MutableMapping[str, str]) -> None:
    """Have the processes that are started with this environment watched; they write into the same folder.

    A run that is kept in memory has no folder to join: its children are left alone.
    """
    leave_children(environment)
    if options.record is None:
        return
    environment[OPTIONS_VARIABLE] = replace(options, quiet=True, fail_on=None).to_json()
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = CHILD_FOLDER + (os.pathsep + path if path else "")


def leave_children(environment: MutableMapping[str, str]) -> None:
    """Take out what `reach_children` (here or in the process that started this one) has put in."""
    environment.pop(OPTIONS_VARIABLE, None)
    entries = environment.get("PYTHONPATH", "").split(os.pathsep)
    if CHILD_FOLDER in entries:
        rest = [entry for entry in entries if entry != CHILD_FOLDER]
        if rest:
            environment["PYTHONPATH"] = os.pathsep.join(rest)
        else:
            del environment["PYTHONPATH"]
