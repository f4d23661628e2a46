"""Initialisation: what suits each parameter of a model, how far its weights are from it, and putting it right.

Pure but for `Plan.apply_`: nothing here watches a training.
"""

from __future__ import annotations

from gradmedic.init.plan import Plan as Plan
from gradmedic.init.residual import ResidualScale as ResidualScale
from gradmedic.init.residual import residual_scale as residual_scale
from gradmedic.init.schemes import Suggestion as Suggestion
from gradmedic.init.suggesting import suggest as suggest

__all__ = ["Plan", "ResidualScale", "Suggestion", "residual_scale", "suggest"]
