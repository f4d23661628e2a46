"""What pip has been told reaches uv; where uv cannot be had or fails, pip installs."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "install.py"


@pytest.fixture
def installer() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_install", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LISTING = """\
:env:.find-links='/wheels'
:env:.disable-pip-version-check='1'
freeze.timeout='10'
global.cert='/certificates.crt'
global.extra-index-url='file:///one/simple file:///two/simple'
global.find-links='/not these'
global.index-url='https://user:secret@index.example/simple'
global.timeout='60'
install.timeout='90'
install.trusted-host="index.example\\nit's.example"
"""


def test_settings_of_pip_are_read_in_its_order_of_precedence(installer):
    assert installer.parse_settings(LISTING) == {
        "cert": "/certificates.crt",
        "disable-pip-version-check": "1",
        "extra-index-url": "file:///one/simple file:///two/simple",
        "find-links": "/wheels",
        "index-url": "https://user:secret@index.example/simple",
        "timeout": "90",
        "trusted-host": "index.example\nit's.example",
    }


def test_uv_is_told_what_pip_was_told(installer):
    options, variables = installer.translate(installer.parse_settings(LISTING))
    pairs = list(zip(options[::2], options[1::2], strict=True))
    assert sorted(pairs) == [
        ("--allow-insecure-host", "index.example"),
        ("--allow-insecure-host", "it's.example"),
        ("--default-index", "https://user:secret@index.example/simple"),
        ("--find-links", "/wheels"),
        ("--index", "file:///one/simple"),
        ("--index", "file:///two/simple"),
        ("--index-strategy", "unsafe-best-match"),
    ]
    assert variables == {"SSL_CERT_FILE": "/certificates.crt", "UV_HTTP_TIMEOUT": "90"}


def test_nothing_is_made_up_where_pip_has_been_told_nothing(installer):
    assert installer.translate(installer.parse_settings("")) == (["--index-strategy", "unsafe-best-match"], {})
    assert installer.translate({"no-index": "false"}) == installer.translate({})
    assert "--no-index" in installer.translate({"no-index": "true"})[0]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, ["pip install --quiet uv", "uv"]),
        ({"pip install --quiet uv": 1}, ["pip install --quiet uv", "pip install --quiet --editable ."]),
        ({"uv": 2}, ["pip install --quiet uv", "uv", "pip install --quiet --editable ."]),
    ],
)
def test_pip_installs_where_uv_does_not(installer, monkeypatch, answers, expected):
    called = []

    def run(command, **options):
        assert command[:2] == [sys.executable, "-m"]
        words = " ".join(command[2:])
        if words == "pip config list":
            return subprocess.CompletedProcess(command, 0, LISTING)
        called.append("uv" if command[2] == "uv" else words)
        if command[2] == "uv":
            assert command[-2:] == ["--editable", "."]
            assert options["env"]["SSL_CERT_FILE"] == "/certificates.crt"
        return subprocess.CompletedProcess(command, answers.get(called[-1], 0))

    monkeypatch.setattr(installer.subprocess, "run", run)
    assert installer.main(["--editable", "."]) == 0
    assert called == expected


def test_the_exit_code_is_that_of_pip(installer, monkeypatch):
    monkeypatch.setattr(installer.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 3, ""))
    assert installer.main(["nothing"]) == 3
