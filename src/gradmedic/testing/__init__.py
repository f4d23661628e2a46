"""Small trainings to learn from and to test with: each runs in seconds, and has a switch for one fault at a time.

Torch only, made data, deterministic by seed; torch's own random numbers are as before afterwards.

>>> import gradmedic as gm
>>> case = gm.testing.mlp(fault="no_zero_grad")
>>> with gm.watch(case.model, case.optimizer) as monitor:
...     losses = case.train()
>>> monitor.diagnose()[0].code == case.code
True
"""

from __future__ import annotations

from gradmedic.testing.case import Case as Case
from gradmedic.testing.case import Fault as Fault
from gradmedic.testing.catalogue import MODELS as MODELS
from gradmedic.testing.catalogue import faults as faults
from gradmedic.testing.gan import gan as gan
from gradmedic.testing.mlp import mlp as mlp
from gradmedic.testing.recurrent import lstm as lstm
from gradmedic.testing.recurrent import rnn as rnn
from gradmedic.testing.resnet import resnet18 as resnet18
from gradmedic.testing.transformer import transformer as transformer

__all__ = ["MODELS", "Case", "Fault", "faults", "gan", "lstm", "mlp", "resnet18", "rnn", "transformer"]
