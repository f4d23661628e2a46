"""Runs the command line, and python itself, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_pool import Completed, Forked, Pool

import gradmedic
from heeding import heed_interrupts

SOURCES = str(Path(gradmedic.__file__).resolve().parents[1])

Run = Callable[..., Completed]


def environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("GRADMEDIC_", "LC_", "COV"))}
    kept.update({"PYTHONPATH": SOURCES, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1", "NO_COLOR": "1"})
    kept.update(changes)
    return kept


def execute(words: list[str], folder: Path, stdin: bytes, env: dict[str, str]) -> Completed:
    return subprocess.run(
        words,
        cwd=folder,
        input=stdin,
        capture_output=True,
        env=environment(**env),
        timeout=250,
        preexec_fn=heed_interrupts,
    )


@pytest.fixture
def python(tmp_path: Path) -> Run:
    """`python(*words)`: what python itself does."""

    def run(*words: str, stdin: bytes = b"", **env: str) -> Completed:
        return execute([sys.executable, *words], tmp_path, stdin, env)

    return run


@pytest.fixture
def gm(tmp_path: Path) -> Run:
    """`gm(*words)`: `gradmedic *words` in a fresh interpreter, for what is about starting one."""

    def run(*words: str, stdin: bytes = b"", **env: str) -> Completed:
        return execute([sys.executable, "-m", "gradmedic", *words], tmp_path, stdin, env)

    return run


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    made = Pool(environment())
    yield made
    made.close()


@pytest.fixture(scope="session")
def bare_pool() -> Iterator[Pool]:
    made = Pool(environment(), bare=True)
    yield made
    made.close()


@pytest.fixture
def start_gm(pool: Pool, tmp_path: Path) -> Callable[..., Forked]:
    """`start_gm(*words)`: `gradmedic *words`, forked, and left running."""

    def start(*words: str, **env: str) -> Forked:
        return pool.start(["gradmedic", *words], tmp_path, environment(**env))

    return start


@pytest.fixture
def gm_fork(pool: Pool, tmp_path: Path) -> Run:
    """`gm_fork(*words)`: `gradmedic *words`, in a forked process that has imported torch."""

    def run(*words: str, stdin: bytes = b"", **env: str) -> Completed:
        return pool.run(["gradmedic", *words], tmp_path, environment(**env), stdin)

    return run


@pytest.fixture
def gm_bare(bare_pool: Pool, tmp_path: Path) -> Run:
    """`gm_bare(*words)`: `gradmedic *words`, in a forked process that has imported the command line and no torch."""

    def run(*words: str, stdin: bytes = b"", **env: str) -> Completed:
        return bare_pool.run(["gradmedic", *words], tmp_path, environment(**env), stdin)

    return run


@pytest.fixture
def python_fork(pool: Pool, tmp_path: Path) -> Run:
    """`python_fork(script, *words)`: the script without gradmedic, in a forked process that has imported torch."""

    def run(*words: str, stdin: bytes = b"", **env: str) -> Completed:
        return pool.run(list(words), tmp_path, environment(**env), stdin)

    return run
