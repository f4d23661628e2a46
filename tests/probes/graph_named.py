"""A graph probe over a model, for tests."""

from __future__ import annotations

import torch
from torch import nn

from gradmedic.probes.graph_samples import GraphProbe


def raise_it(_part: str, error: Exception) -> None:
    raise error


def probe_of(model: nn.Module, failed=raise_it) -> GraphProbe:
    names = {id(p): (name, name.rpartition(".")[0]) for name, p in model.named_parameters()}
    return GraphProbe(lambda tensor: names.get(id(tensor)), failed)


def value(number: torch.Tensor | float) -> float:
    return float(number)


def rows_of(probe: GraphProbe, loss: torch.Tensor, what: str) -> list[tuple[str, dict[str, float]]]:
    """(module, numbers) of the rows of one kind, on the host."""
    return [
        (row.module, {key: float(number) for key, number in (row.numbers | row.extra).items()})
        for row in probe.sample([loss])
        if row.what == what
    ]
