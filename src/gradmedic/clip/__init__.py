"""Clipping: composable transforms that decide, and the one place that touches gradients."""

from __future__ import annotations

from gradmedic.clip.base import Decision as Decision
from gradmedic.clip.base import GradientSummary as GradientSummary
from gradmedic.clip.base import Transform as Transform
from gradmedic.clip.norm import norm as norm

__all__ = ["Decision", "GradientSummary", "Transform", "norm"]
