"""`gradmedic clip`."""

from __future__ import annotations

import json

import pytest
import torch

import gradmedic as gm
from gradmedic.cli import main


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    torch.manual_seed(0)
    model, path = torch.nn.Linear(4, 1), tmp_path_factory.mktemp("clip") / "run"
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with gm.watch(model, {"sgd": optimizer}, record=path):
        for _ in range(30):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return path


@pytest.mark.parametrize(("lang", "says"), [("en", "recommended: norm("), ("zh", "建议：norm(")])
def test_text(folder, capsys, lang, says):
    assert main(["clip", str(folder), "--lang", lang]) == 0
    out, err = capsys.readouterr()
    assert says in out
    assert "sgd (SGD)" in out
    assert err == ""


def test_json(folder, capsys):
    assert main(["clip", str(folder), "--format", "json", "--lang", "en"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["run"] == str(folder)
    assert data["optimizers"][0]["optimizer"] == "sgd"
    assert data["optimizers"][0]["expression"].startswith("gm.clip.norm(")


def test_no_run(tmp_path, capsys):
    assert main(["clip", str(tmp_path / "none")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "does not exist" in err


def test_help(capsys):
    with pytest.raises(SystemExit):
        main(["clip", "--help"])
    assert "example: gradmedic clip runs/exp1" in capsys.readouterr().out
