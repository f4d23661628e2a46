"""What torch is doing in this thread right now."""

from __future__ import annotations

import torch

from gradmedic.muting import is_muted


def inside_backward() -> bool:
    """Whether this thread runs a node of a backward pass (also true on the engine's worker threads)."""
    return bool(torch._C._current_graph_task_id() != -1)


def passive() -> bool:
    """Whether hooks must do nothing now: muted, while a compiler traces, or while a CUDA stream is being captured."""
    return torch.compiler.is_compiling() or is_muted() or capturing()


def capturing() -> bool:
    """Whether this thread's current CUDA stream is being captured into a graph."""
    return cuda_in_use() and torch.cuda.is_current_stream_capturing()


def cuda_in_use() -> bool:
    """Whether this process has initialised CUDA; asking does not."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
