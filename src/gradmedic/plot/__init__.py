"""Figures for papers and notebooks, drawn with matplotlib.

Each takes a `Run`, the path of a run folder or a `Monitor`, draws on the `ax` it is given or in a figure of its own,
and returns the axes. None shows anything by itself, changes a default or picks a backend.

>>> callable(gradient_flow)
True
"""

from __future__ import annotations

from gradmedic.plot.clipping import clip as clip
from gradmedic.plot.evolution import evolution as evolution
from gradmedic.plot.flow_animation import flow_animation as flow_animation
from gradmedic.plot.gradient_flow import gradient_flow as gradient_flow
from gradmedic.plot.heads import heads as heads
from gradmedic.plot.heatmap import heatmap as heatmap
from gradmedic.plot.layer_distribution import layer_distribution as layer_distribution
from gradmedic.plot.loss import loss as loss
from gradmedic.plot.overview import overview as overview
from gradmedic.plot.through_time import through_time as through_time

__all__ = [
    "clip",
    "evolution",
    "flow_animation",
    "gradient_flow",
    "heads",
    "heatmap",
    "layer_distribution",
    "loss",
    "overview",
    "through_time",
]
