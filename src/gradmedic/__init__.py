"""gradmedic watches a PyTorch training run, says what is wrong with it, and treats it.

>>> import gradmedic as gm
>>> callable(gm.watch)
True

Names are imported when they are first used: `gradmedic run` must be able to start before torch is imported, since a
script may still set the environment variables that torch reads then.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gradmedic.errors import GradmedicError as GradmedicError
from gradmedic.errors import InputError as InputError
from gradmedic.errors import TrainingHalted as TrainingHalted
from gradmedic.errors import TransformError as TransformError

if TYPE_CHECKING:
    from gradmedic import clip as clip
    from gradmedic import guard as guard
    from gradmedic import init as init
    from gradmedic import plot as plot
    from gradmedic import sinks as sinks
    from gradmedic import stats as stats
    from gradmedic import testing as testing
    from gradmedic.clip.drop_in import clip_grad_norm_ as clip_grad_norm_
    from gradmedic.clipper import Clipper as Clipper
    from gradmedic.diagnosis import Finding as Finding
    from gradmedic.diagnosis import diagnose as diagnose
    from gradmedic.frame import Frame as Frame
    from gradmedic.init.residual import residual_scale as residual_scale
    from gradmedic.monitor import Monitor as Monitor
    from gradmedic.record import Run as Run
    from gradmedic.record import open_run as open_run
    from gradmedic.watching import watch as watch

__version__ = "0.1.0"

__all__ = [
    "Clipper",
    "Finding",
    "Frame",
    "GradmedicError",
    "InputError",
    "Monitor",
    "Run",
    "TrainingHalted",
    "TransformError",
    "clip",
    "clip_grad_norm_",
    "diagnose",
    "guard",
    "init",
    "open_run",
    "plot",
    "residual_scale",
    "sinks",
    "stats",
    "testing",
    "watch",
]

#: Name -> the module that has it.
_WHERE = {
    "Clipper": "gradmedic.clipper",
    "Finding": "gradmedic.diagnosis",
    "Frame": "gradmedic.frame",
    "Monitor": "gradmedic.monitor",
    "Run": "gradmedic.record",
    "clip_grad_norm_": "gradmedic.clip.drop_in",
    "diagnose": "gradmedic.diagnosis",
    "open_run": "gradmedic.record",
    "residual_scale": "gradmedic.init.residual",
    "watch": "gradmedic.watching",
}
_MODULES = ("clip", "guard", "init", "plot", "sinks", "stats", "testing")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"gradmedic.{name}")
    if name not in _WHERE:
        raise AttributeError(f"module 'gradmedic' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
