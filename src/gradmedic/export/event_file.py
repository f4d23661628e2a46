"""One TensorBoard event file: records of TensorBoard's own messages, at the times of the run."""

from __future__ import annotations

import importlib
import math
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from gradmedic.export.checksum import crc32c, masked
from gradmedic.record.arrays import Array
from gradmedic.types import HISTOGRAM_FIRST_EXPONENT

_VALUES_OF_AN_EVENT = 4096
#: Of float32.
_LARGEST = float(np.finfo(np.float32).max)
_Histogram = tuple[str, Array, float, float, float, float]


class EventFile:
    """Writes an event file.

    Args:
        folder: where it comes to lie; made when missing.
        began: unix seconds of the first event.
        suffix: what its name ends in, beside "gradmedic".
        live: never replace a file, and write each event at once, so that TensorBoard can follow.
    """

    def __init__(self, folder: Path, began: float, *, suffix: str = "", live: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = ".".join(part for part in ("gradmedic", suffix) if part)
        self.path = folder / f"events.out.tfevents.{max(0, int(began)):010d}.{name}"
        self.began = began
        self._event: Any = _messages("event").Event
        self._summary: Any = _messages("summary").Summary
        self._file: IO[bytes] = self.path.open("xb", buffering=0) if live else self.path.open("wb")
        self._write(self._event(wall_time=began, file_version="brain.Event:2"))

    def scalars(self, step: int, time: float, values: list[tuple[str, float]]) -> None:
        """Add values (tag, number) of one step; NaN and infinity are kept."""
        for at in range(0, len(values), _VALUES_OF_AN_EVENT):
            some = values[at : at + _VALUES_OF_AN_EVENT]
            entries = [self._summary.Value(tag=tag, simple_value=_single(value)) for tag, value in some]
            self._add(step, time, entries)

    def histograms(self, step: int, time: float, entries: Iterable[_Histogram]) -> None:
        """Add histograms (tag, counts by log2 [64], zeros, largest, mean of magnitudes, norm) of one step."""
        self._add(step, time, [self._histogram(*entry) for entry in entries])

    def text(self, step: int, time: float, tag: str, text: str) -> None:
        """Add a text in markdown."""
        metadata = _messages("summary").SummaryMetadata
        plugin = metadata.PluginData(plugin_name="text")
        data = [text.encode("utf-8", "replace")]
        tensor = _messages("tensor").TensorProto(dtype=_messages("types").DT_STRING, string_val=data)
        entry = self._summary.Value(tag=tag, metadata=metadata(plugin_data=plugin), tensor=tensor)
        self._add(step, time, [entry])

    def close(self) -> None:
        """End the file."""
        self._file.close()

    def _histogram(self, tag: str, counts: Array, zeros: float, largest: float, mean: float, norm: float) -> Any:
        # TensorBoard's buckets are (limit before, limit]: zeros and what underflows come first.
        limits = [0.0, *np.exp2(np.arange(len(counts)) + (HISTOGRAM_FIRST_EXPONENT + 1.0)).tolist()]
        filled = [zeros, *counts.astype(float).tolist()]
        number = float(sum(filled))
        kept = [at for at, count in enumerate(filled) if count] or [0]
        # The bucket before the first full one bounds it from below.
        first, last = max(0, kept[0] - 1), kept[-1]
        shown = _messages("summary").HistogramProto(
            min=0.0 if zeros else limits[first],
            max=largest,
            num=number,
            sum=mean * number,
            sum_squares=norm * norm if norm < 1e150 else math.inf,
            bucket_limit=limits[first : last + 1],
            bucket=filled[first : last + 1],
        )
        return self._summary.Value(tag=tag, histo=shown)

    def _add(self, step: int, time: float, entries: list[Any]) -> None:
        if entries:
            when = time if math.isfinite(time) else self.began
            self._write(self._event(step=step, wall_time=when, summary=self._summary(value=entries)))

    def _write(self, event: Any) -> None:
        data = event.SerializeToString()
        length = struct.pack("<Q", len(data))
        checks = (struct.pack("<I", masked(crc32c(part))) for part in (length, data))
        self._file.write(b"".join((length, next(checks), data, next(checks))))


def _messages(name: str) -> Any:
    return importlib.import_module(f"tensorboard.compat.proto.{name}_pb2")


def _single(value: float) -> float:
    """Return a number that float32 holds; beyond its range infinity, where the message would raise."""
    return value if abs(value) <= _LARGEST or not math.isfinite(value) else math.copysign(math.inf, value)
