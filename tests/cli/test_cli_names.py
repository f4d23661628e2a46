"""What the command line calls severities and scripts."""

from __future__ import annotations

import argparse

import pytest

from gradmedic.cli.command import add_fail_on
from gradmedic.cli.program import Program


def test_a_severity_may_be_named_as_a_check_up_prints_it():
    named = argparse.ArgumentParser()
    add_fail_on(named)
    found = [named.parse_args(["--fail-on", text]).fail_on for text in ("note", "info", "critical")]
    assert found == ["info", "info", "critical"]
    assert "info (or note), warning" in " ".join(named.format_help().split())


@pytest.mark.parametrize(
    ("program", "name", "label"),
    [
        (Program("file", "exp/crash.py"), "crash", "crash.py"),
        (Program("module", "pkg.train"), "pkg.train", "pkg.train"),
        (Program("stdin", "-"), "stdin", "stdin"),
        (Program("file", "a\x1b[2J.py"), "a\x1b[2J", "a\\x1b[2J.py"),
    ],
)
def test_messages_call_a_script_by_its_file(program, name, label):
    assert (program.name, program.label) == (name, label)
