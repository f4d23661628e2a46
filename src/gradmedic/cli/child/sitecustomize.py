"""Imported by python at the start of every process that a watched script starts: arms the watching of that process.

`gradmedic run` puts this folder at the front of PYTHONPATH. We leave `sys.path` as it would be without us, hand on to
the sitecustomize that ours has hidden, and load one small file; gradmedic itself is imported only if the process begins
to train. Whatever goes wrong here is silent: the process is not ours, and may run under any python 3.
"""

import contextlib
import importlib
import importlib.util
import os
import sys


def _step_aside(folder: str) -> None:
    """Remove our folder from `sys.path`, and import the sitecustomize that comes after it, if there is one."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder]
    sys.path_importer_cache.pop(folder, None)
    ours = sys.modules.pop("sitecustomize", None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        # Python takes the module that it has loaded from `sys.modules`; there must be one.
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)


def _arm(folder: str) -> None:
    """Have gradmedic started when this process begins to train."""
    path = os.path.join(os.path.dirname(folder), "arm.py")
    spec = importlib.util.spec_from_file_location("_gradmedic_arm", path)
    assert spec is not None
    assert spec.loader is not None
    arm = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(arm)
    arm.when_training_begins(_start)


def _start() -> None:
    with contextlib.suppress(Exception):
        from gradmedic.cli.session import start_child

        start_child()


def _main() -> None:
    folder = os.path.dirname(os.path.abspath(__file__))
    if "GRADMEDIC_CHILD" in os.environ:
        with contextlib.suppress(Exception):
            _arm(folder)
    _step_aside(folder)


_main()
