"""gradmedic watches a PyTorch training run, says what is wrong with it, and treats it.

>>> import gradmedic as gm
>>> callable(gm.watch)
True
"""

from __future__ import annotations

from gradmedic import clip as clip
from gradmedic import stats as stats
from gradmedic.clip.drop_in import clip_grad_norm_ as clip_grad_norm_
from gradmedic.diagnosis import Finding as Finding
from gradmedic.diagnosis import diagnose as diagnose
from gradmedic.errors import GradmedicError as GradmedicError
from gradmedic.errors import InputError as InputError
from gradmedic.errors import TrainingHalted as TrainingHalted
from gradmedic.frame import Frame as Frame
from gradmedic.monitor import Monitor as Monitor
from gradmedic.monitor import watch as watch
from gradmedic.record import Run as Run
from gradmedic.record import open_run as open_run

__version__ = "0.1.0"

__all__ = [
    "Finding",
    "Frame",
    "GradmedicError",
    "InputError",
    "Monitor",
    "Run",
    "TrainingHalted",
    "clip",
    "clip_grad_norm_",
    "diagnose",
    "open_run",
    "stats",
    "watch",
]
