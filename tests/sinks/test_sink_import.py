"""Importing gradmedic, or its sinks, imports no backend; making sinks imports neither that nor torch."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
import gradmedic as gm
before = [name for name in sys.modules if name.startswith("gradmedic.sinks")]
sinks = [
    gm.sinks.TensorBoard("x"), gm.sinks.Wandb("p"), gm.sinks.MLflow("sqlite:///x.db"), gm.sinks.Prometheus(),
    gm.sinks.PrometheusTextfile("x.prom"), gm.sinks.OpenTelemetry(), gm.sinks.JsonLines(), gm.sinks.Csv("x.csv"),
    gm.sinks.Webhook("http://127.0.0.1/x"),
]
for sink in sinks:
    sink.close()
heavy = {"torch", "tensorboard", "wandb", "mlflow", "prometheus_client", "opentelemetry", "numpy", "pyarrow"}
print(before, sorted(heavy & set(sys.modules)), sorted(set(gm.sinks.__all__) - set(dir(gm.sinks))))
"""


def test_nothing_is_imported_early(tmp_path):
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.split("\n")[0] == "[] [] []"
    assert list(tmp_path.iterdir()) == []
