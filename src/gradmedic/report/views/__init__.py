"""What is shown of a run, as arrays: execution order, grids of layers by steps, quantiles, trouble.

Pure functions of a `Run`; the page, the plots, the terminal view and the comparison all read these. In every array NaN
means *not recorded* and an infinity *recorded, and not finite*; a zero is a zero.
"""

from __future__ import annotations

from gradmedic.report.views.boxes import quantiles_of as quantiles_of
from gradmedic.report.views.grids import Grid as Grid
from gradmedic.report.views.grids import tensor_grid as tensor_grid
from gradmedic.report.views.heads import HeadSeries as HeadSeries
from gradmedic.report.views.heads import head_series as head_series
from gradmedic.report.views.layers import LayerRow as LayerRow
from gradmedic.report.views.layers import joint_norms as joint_norms
from gradmedic.report.views.layers import layer_rows as layer_rows
from gradmedic.report.views.modules import module_grid as module_grid
from gradmedic.report.views.order import TensorRow as TensorRow
from gradmedic.report.views.order import tensor_rows as tensor_rows
from gradmedic.report.views.scalars import Scalars as Scalars
from gradmedic.report.views.scalars import clip_rate as clip_rate
from gradmedic.report.views.scalars import lr_norm_correlation as lr_norm_correlation
from gradmedic.report.views.scalars import scalars_of as scalars_of
from gradmedic.report.views.source import Source as Source
from gradmedic.report.views.trouble import trouble_of as trouble_of

__all__ = [
    "Grid",
    "HeadSeries",
    "LayerRow",
    "Scalars",
    "Source",
    "TensorRow",
    "clip_rate",
    "head_series",
    "joint_norms",
    "layer_rows",
    "lr_norm_correlation",
    "module_grid",
    "quantiles_of",
    "scalars_of",
    "tensor_grid",
    "tensor_rows",
    "trouble_of",
]
