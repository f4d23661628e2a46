"""Methods by name, each as its paper defines it, without the faults of its published code."""

from __future__ import annotations

from gradmedic.clip.methods.adagc import adagc as adagc
from gradmedic.clip.methods.agc import agc as agc
from gradmedic.clip.methods.by_quantile import autoclip as autoclip
from gradmedic.clip.methods.by_quantile import median_clip as median_clip
from gradmedic.clip.methods.spike_clip import spike_clip as spike_clip
from gradmedic.clip.methods.zclip import zclip as zclip

__all__ = ["adagc", "agc", "autoclip", "median_clip", "spike_clip", "zclip"]
