"""Where live numbers also go: TensorBoard, Weights & Biases, MLflow, Prometheus, OpenTelemetry, files, a webhook.

Each has `emit(frame)`, `emit_finding(finding)` and `close()`. Given to `gm.watch(sinks=[...])`, each works in a thread
of its own behind a bounded queue, so that one that is slow or fails never holds up training.

>>> import gradmedic as gm
>>> gm.sinks.Csv("numbers.csv")
Csv('numbers.csv')

Names are imported when they are first used, and the libraries behind them when the first frame comes.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradmedic.sinks.base import BaseSink as BaseSink
    from gradmedic.sinks.csv_file import Csv as Csv
    from gradmedic.sinks.json_lines import JsonLines as JsonLines
    from gradmedic.sinks.mlflow_server import MLflow as MLflow
    from gradmedic.sinks.opentelemetry_meter import OpenTelemetry as OpenTelemetry
    from gradmedic.sinks.prometheus_server import Prometheus as Prometheus
    from gradmedic.sinks.prometheus_textfile import PrometheusTextfile as PrometheusTextfile
    from gradmedic.sinks.queued import Queued as Queued
    from gradmedic.sinks.tensorboard_events import TensorBoard as TensorBoard
    from gradmedic.sinks.wandb_run import Wandb as Wandb
    from gradmedic.sinks.webhook import Webhook as Webhook

#: Name -> the module that has it.
_WHERE = {
    "BaseSink": "base",
    "Csv": "csv_file",
    "JsonLines": "json_lines",
    "MLflow": "mlflow_server",
    "OpenTelemetry": "opentelemetry_meter",
    "Prometheus": "prometheus_server",
    "PrometheusTextfile": "prometheus_textfile",
    "Queued": "queued",
    "TensorBoard": "tensorboard_events",
    "Wandb": "wandb_run",
    "Webhook": "webhook",
}

__all__ = [
    "BaseSink",
    "Csv",
    "JsonLines",
    "MLflow",
    "OpenTelemetry",
    "Prometheus",
    "PrometheusTextfile",
    "Queued",
    "TensorBoard",
    "Wandb",
    "Webhook",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'gradmedic.sinks' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"gradmedic.sinks.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
