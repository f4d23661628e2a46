"""Clipping: composable transforms that decide, and the one place that touches gradients."""

from __future__ import annotations

from gradmedic.clip.base import BaseTransform as BaseTransform
from gradmedic.clip.base import Decision as Decision
from gradmedic.clip.base import Reason as Reason
from gradmedic.clip.base import Transform as Transform
from gradmedic.clip.boost import boost as boost
from gradmedic.clip.chain import chain as chain
from gradmedic.clip.dry_run import dry_run as dry_run
from gradmedic.clip.layers import layers as layers
from gradmedic.clip.methods import adagc as adagc
from gradmedic.clip.methods import agc as agc
from gradmedic.clip.methods import autoclip as autoclip
from gradmedic.clip.methods import median_clip as median_clip
from gradmedic.clip.methods import spike_clip as spike_clip
from gradmedic.clip.methods import zclip as zclip
from gradmedic.clip.norm import norm as norm
from gradmedic.clip.operations import Scale as Scale
from gradmedic.clip.spec import Spec as Spec
from gradmedic.clip.state import State as State
from gradmedic.clip.summary import GradientSummary as GradientSummary
from gradmedic.clip.thresholds import ema_ratio as ema_ratio
from gradmedic.clip.thresholds import median as median
from gradmedic.clip.thresholds import param_ratio as param_ratio
from gradmedic.clip.thresholds import percentile as percentile
from gradmedic.clip.thresholds import zscore as zscore
from gradmedic.clip.value import value as value
from gradmedic.clip.warmup import warmup as warmup

__all__ = [
    "BaseTransform",
    "Decision",
    "GradientSummary",
    "Reason",
    "Scale",
    "Spec",
    "State",
    "Transform",
    "adagc",
    "agc",
    "autoclip",
    "boost",
    "chain",
    "dry_run",
    "ema_ratio",
    "layers",
    "median",
    "median_clip",
    "norm",
    "param_ratio",
    "percentile",
    "spike_clip",
    "value",
    "warmup",
    "zclip",
    "zscore",
]
