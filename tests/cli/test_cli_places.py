"""`gradmedic run` where no folder can be made, and what it tells to type next in a language chosen by its option."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from test_edges_cli import script

from gradmedic.cli import folders
from gradmedic.cli.command import chosen_by_option
from gradmedic.cli.folders import check_possible
from gradmedic.errors import InputError

NAN = "optimizer.zero_grad()\nmodel(torch.full((8, 4), float('nan'))).pow(2).mean().backward()\noptimizer.step()\n"


def test_a_folder_that_cannot_be_made_is_refused_before_training(gm_fork, tmp_path):
    """Nobody may make folders in /proc, although its permissions say that root may."""
    path = script(tmp_path, "print('trained')\nfor _ in steps(2): pass\n")
    done = gm_fork("run", "--record", "/proc/x", path)
    assert done.returncode == 2
    assert done.stdout == b""
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("gradmedic: cannot create ")
    assert "/proc" in line


def test_the_default_folder_is_refused_as_well(gm_fork, tmp_path):
    """A folder of this name cannot be made where a file has it."""
    (tmp_path / "runs").touch()
    done = gm_fork("run", script(tmp_path, "print('trained')\nfor _ in steps(2): pass\n"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().count("\n") == 1


def test_the_trial_leaves_nothing(tmp_path):
    for asked in ("a", "a/b/c", "../x"):
        check_possible(tmp_path / asked)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="cannot create the run folder"):
        check_possible(tmp_path / ("n" * 300))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "refused"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EROFS, True)])
def test_a_full_disk_is_no_reason_to_refuse(tmp_path, monkeypatch, number, refused):
    def fail(*_args: object, **_named: object) -> str:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folders.tempfile, "mkdtemp", fail)
    if refused:
        with pytest.raises(InputError, match="Read-only file system"):
            check_possible(tmp_path / "run")
    else:
        check_possible(tmp_path / "run")


@pytest.mark.parametrize(("option", "asked"), [("zh", " --lang zh"), ("en", "")])
def test_the_next_command_speaks_the_language_that_was_chosen(gm_fork, tmp_path, option, asked):
    path = script(tmp_path, f"for _ in steps(2): pass\n{NAN}")
    done = gm_fork("run", "--lang", option, "--record", "run", path)
    lines = done.stderr.decode().splitlines()
    (line,) = (line for line in lines if "gradmedic explain" in line)
    assert line.endswith(f"gradmedic explain GM201{asked}")
    assert any(line.endswith(f"gradmedic report run{asked}") for line in lines)
    told = gm_fork("diagnose", "run", "--lang", option).stdout.decode()
    assert f"gradmedic explain GM201{asked}\n" in told


def test_a_language_of_the_environment_needs_no_option(monkeypatch):
    monkeypatch.setenv("GRADMEDIC_LANG", "zh")
    assert (chosen_by_option("zh"), chosen_by_option("en")) == (False, True)


def test_a_script_that_failed_is_not_called_healthy(gm_fork, tmp_path):
    path = script(tmp_path, "for _ in steps(5): pass\n1 / 0\n")
    done = gm_fork("run", "--lang", "en", "--record", "run", path, COLUMNS="200")
    said = "gradmedic: nothing found until the run ended by ZeroDivisionError after step 4\n"
    assert done.returncode == 1
    assert said in done.stderr.decode()
    assert gm_fork("diagnose", "run", "--lang", "en", COLUMNS="200").stdout.decode().startswith(said)
    assert Path(tmp_path / "run").is_dir()
