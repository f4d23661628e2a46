"""Runs made of norms alone, to be advised on."""

from __future__ import annotations

import math

import numpy as np

from gradmedic.frame import Frame, TensorTable


class Norms:
    """What `advise` asks of a run: frames and events."""

    path = None

    def __init__(self, frames, events=()):
        self._frames, self.events = frames, list(events)

    def frames(self):
        return iter(self._frames)


def table(norms):
    norms = np.asarray(norms, np.float64)
    finite = np.isfinite(norms)
    columns = {
        "norm": np.where(finite, norms, 0.0),
        "nan_count": np.isnan(norms).astype(np.int64),
        "inf_count": np.isinf(norms).astype(np.int64),
        "status": np.zeros(len(norms), np.int64),
    }
    return TensorTable(tuple(f"layers.{at}.weight" for at in range(len(norms))), columns)


def frame(step, norm, optimizer="optimizer", tensors=None, **values):
    sick = int(norm is not None and not math.isfinite(norm))
    values = {"lr": 0.1, "nonfinite": sick, **values}
    tables = TensorTable() if tensors is None else table(tensors)
    return Frame(step=step, optimizer=optimizer, grad_norm=norm, tensors=tables, **values)


def run_of(norms, kind="AdamW", rates=None, events=(), tables=False, optimizer="optimizer", **values):
    """A run of one optimizer; with `tables`, two tensors that share the norm as 3 : 4."""
    frames = [
        frame(
            at,
            norm,
            optimizer,
            (0.6 * norm, 0.8 * norm) if tables else None,
            **{**({} if rates is None else {"lr": float(rates[at])}), **values},
        )
        for at, norm in enumerate(norms)
    ]
    return Norms(frames, [facts(**{optimizer: kind}), *events])


def facts(**kinds):
    return {"kind": "facts", "facts": {"optimizers": {name: {"class": kind} for name, kind in kinds.items()}}}


def finding(code, step, severity="error", optimizer=""):
    return {
        "kind": "finding",
        "finding": {"code": code, "step": step, "severity": severity, "optimizer": optimizer},
    }


def noise(count, level=1.0, spread=0.2, seed=0):
    return level * np.exp(np.random.default_rng(seed).normal(0.0, spread, count))
