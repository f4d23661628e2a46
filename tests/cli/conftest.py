"""Runs the command line, and python itself, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import gradmedic

SOURCES = str(Path(gradmedic.__file__).resolve().parents[1])
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

Run = Callable[..., "subprocess.CompletedProcess[bytes]"]


def environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GRADMEDIC_", "LC_", "COV"))}
    kept.update({"PYTHONPATH": SOURCES, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"})
    kept.update(changes)
    return kept


def execute(words: list[str], folder: Path, stdin: bytes, env: dict[str, str]) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(words, cwd=folder, input=stdin, capture_output=True, env=environment(**env), timeout=100)


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """`python(*words)`: what python itself does."""

    def run(*words: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
        return execute([sys.executable, *words], tmp_path, stdin, env)

    return run


@pytest.fixture
def gm(tmp_path: Path) -> Run:
    """`gm(*words)`: `gradmedic *words`."""

    def run(*words: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
        return execute([sys.executable, "-m", "gradmedic", *words], tmp_path, stdin, env)

    return run
