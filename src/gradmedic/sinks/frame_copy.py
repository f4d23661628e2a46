"""A frame for a sink to keep: what the sink does to it reaches neither the record nor another sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def own_copy(content: Any) -> Any:
    """Return a frame whose parts may be replaced, and whose arrays are read-only views; anything else as it is.

    The arrays themselves are shared with the record, which is written at the same time: to write to one raises
    ValueError in the sink that tries.

    Args:
        content: a frame, or whatever else was queued.

    Example:
        >>> import gradmedic as gm
        >>> frame = gm.Frame(0, "optimizer", logged={"accuracy": 0.5})
        >>> own_copy(frame).logged["accuracy"] = 1.0
        >>> frame.logged
        {'accuracy': 0.5}
    """
    import dataclasses

    from gradmedic.frame import Frame, TensorTable

    if type(content) is not Frame:
        return content
    table = content.tensors
    columns = {name: _read_only(column) for name, column in table.columns.items()}
    return dataclasses.replace(
        content,
        logged=dict(content.logged),
        tensors=TensorTable(table.names, columns, _read_only(table.log2_hist)),
        modules=tuple(_fields(module) for module in content.modules),
    )


def _fields(module: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _read_only(value) for key, value in module.items()}


def _read_only(value: Any) -> Any:
    import numpy as np

    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view
