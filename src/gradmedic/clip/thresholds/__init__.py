"""Thresholds: what a norm is compared with."""

from __future__ import annotations

from gradmedic.clip.thresholds.base import Threshold as Threshold
from gradmedic.clip.thresholds.base import as_threshold as as_threshold
from gradmedic.clip.thresholds.ema import ema_ratio as ema_ratio
from gradmedic.clip.thresholds.param_ratio import param_ratio as param_ratio
from gradmedic.clip.thresholds.quantiles import median as median
from gradmedic.clip.thresholds.quantiles import percentile as percentile
from gradmedic.clip.thresholds.zscore import zscore as zscore

__all__ = ["Threshold", "as_threshold", "ema_ratio", "median", "param_ratio", "percentile", "zscore"]
