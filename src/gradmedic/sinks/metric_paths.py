"""Metrics under paths, for backends whose names have no labels: `gradmedic/grad_norm/pre_clip`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gradmedic.sinks.metric_table import LAYER_GRAD_NORM, PREFIX, layer_norms, readings

if TYPE_CHECKING:
    from gradmedic.frame import Frame

_MOST_NAMES = 4096


class MetricPaths:
    """Turns frames into (path, number), counters as what they stand at.

    The first optimizer's metrics have no optimizer in their path; those of further ones do.

    Args:
        clean: makes a part of a path fit the backend's rules.
        layers: how many layers have a path, in the order of the model; the same ones throughout.
        layers_every: every how many steps they are given.
    """

    def __init__(self, clean: Callable[[str], str], layers: int, layers_every: int) -> None:
        self._clean = clean
        self._layers = layers
        self._layers_every = layers_every
        self._main: str | None = None
        self._chosen: dict[str, str] = {}
        self._counters: dict[str, float] = {}

    def of(self, frame: Frame) -> dict[str, float]:
        """Return path -> number of one frame."""
        prefix = self.prefix(frame)
        found = {
            "/".join((prefix, metric.name, *map(self._clean, labels))): value
            for metric, labels, value in readings(frame, "gauge")
            if metric.name != "last_step"  # it is the axis
        }
        for metric, labels, value in readings(frame, "counter"):
            path = "/".join((prefix, f"{metric.name}_total", *map(self._clean, labels)))
            if path in self._counters or len(self._counters) < _MOST_NAMES:
                self._counters[path] = found[path] = self._counters.get(path, 0.0) + value
        return {**found, **dict(self.layers(frame))}

    def prefix(self, frame: Frame) -> str:
        """Return what the paths of a frame's optimizer begin with."""
        if self._main is None:
            self._main = frame.optimizer
        return PREFIX if frame.optimizer == self._main else f"{PREFIX}/{self._clean(frame.optimizer)}"

    def layers(self, frame: Frame) -> Iterator[tuple[str, float]]:
        """Yield (path, norm) of the chosen layers, at the steps at which they are given."""
        if not self._layers or frame.step % self._layers_every:
            return
        for name, norm in layer_norms(frame):
            path = self.layer(name)
            if path is not None:
                yield f"{self.prefix(frame)}/{LAYER_GRAD_NORM.name}/{path}", norm

    def layer(self, name: str) -> str | None:
        """Return a layer's name as part of a path; None if it is not among the chosen ones."""
        if name not in self._chosen:
            if len(self._chosen) >= self._layers:
                return None
            self._chosen[name] = self._clean(name)
        return self._chosen[name]


def cleaner(forbidden: str, limit: int) -> Callable[[str], str]:
    """Return a function that makes names fit: other characters become `_`, long names end in a digest.

    Two names that would come out alike are told apart by the digest as well.

    Args:
        forbidden: regular expression of one character that must not be in a name.
        limit: most characters of a name.
    """
    pattern = re.compile(forbidden)
    taken: dict[str, str] = {}

    def clean(name: str) -> str:
        fitting = pattern.sub("_", name).strip() or "_"
        if fitting in (".", ".."):
            fitting = "_"
        if len(fitting) > limit or (fitting != name and taken.get(fitting, name) != name):
            digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
            fitting = f"{fitting[: limit - 9]}-{digest}"
        if len(taken) < _MOST_NAMES:
            taken.setdefault(fitting, name)
        return fitting

    return clean
