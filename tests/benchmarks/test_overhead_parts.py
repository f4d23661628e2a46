"""The table of parts: it times what is there, and adds up calls that fail too."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("overhead_parts", BENCHMARKS / "overhead_parts.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "overhead_parts", module)
    spec.loader.exec_module(module)
    return module


def test_every_part_is_a_function_that_there_is(parts):
    assert all(callable(getattr(owner, name)) for _, owner, name in parts.PARTS)


def test_calls_are_timed_and_go_on_as_they_would(parts, monkeypatch):
    class Owner:
        def double(self, x):
            if x < 0:
                raise ValueError(x)
            return 2 * x

    clock = iter([1.0, 3.5, 10.0, 10.25])
    monkeypatch.setattr(parts.time, "perf_counter", lambda: next(clock))
    spent = {"part": 0.0}
    parts.timed(Owner, "double", spent, "part")
    assert Owner().double(4) == 8
    with pytest.raises(ValueError, match="-1"):
        Owner().double(-1)
    assert spent["part"] == 2.75
