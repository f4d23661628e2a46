"""Files that commands write never take the place of the record that they read."""

from __future__ import annotations

import os
import threading

import pytest

from gradmedic.cli.outputs import check_output, write_output
from gradmedic.errors import InputError


def test_a_file_in_the_run_folder_is_refused_also_through_a_link(tmp_path):
    folder = tmp_path / "run"
    (folder / "deep").mkdir(parents=True)
    link = tmp_path / "link.html"
    link.symlink_to(folder / "run.json")
    for asked in (folder / "run.json", folder / "deep" / "x.html", link):
        with pytest.raises(InputError, match="the record"):
            check_output(str(asked), [folder])
    assert check_output(str(tmp_path / "x.html"), [folder]) == (tmp_path / "x.html").resolve()


@pytest.mark.parametrize("name", ["x" * 300, "a\0b", "no/where/x.html"])
def test_what_cannot_be_a_file_is_said(tmp_path, name):
    with pytest.raises(InputError):
        check_output(str(tmp_path / name), [])


def test_an_older_file_stays_until_the_new_one_is_whole(tmp_path):
    file = tmp_path / "page.html"
    file.write_text("old")
    with pytest.raises(InputError):
        write_output(file, "\ud800")  # cannot be encoded
    assert file.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["page.html"]
    write_output(file, "new")
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o666 & ~_umask()


def test_a_pipe_is_written_through(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_output(pipe, "through")
    reader.join(10)
    assert read == ["through"]
    assert pipe.is_fifo()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_what_is_folded_under_a_milder_cause_counts_for_fail_on():
    from gradmedic.cli.command import reaches
    from gradmedic.diagnosis.finding import Finding

    nan = Finding("GM201", "nonfinite", "critical", 0.9, 9)
    cause = Finding("GM507", "target-scale", "warning", 0.9, 0, folded=(nan,))
    assert reaches([cause], "error")
    assert not reaches([Finding("GM507", "target-scale", "warning", 0.9, 0)], "error")
