"""What processes that were killed leave in run folders is in nobody's way."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from gradmedic.integrations import claims
from gradmedic.integrations.claims import CLAIM, claim, is_claimed
from gradmedic.integrations.free_folders import folder_to_replace, free_folder, sole
from gradmedic.integrations.writers import has_run_since

pytestmark = pytest.mark.skipif(os.name != "posix", reason="kills processes")


def killed(work):
    """Run a function in a process that is killed at its end and, until it is waited for, can still be asked."""
    child = os.fork()
    if child == 0:
        work()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child


def test_a_folder_in_which_a_killed_process_began_is_free_again(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    child = killed(lambda: claim(run))
    os.waitpid(child, 0)
    assert (run / CLAIM).exists()
    assert not is_claimed(run)
    assert free_folder(run) == folder_to_replace(run, ()) == run
    with sole(run) as first, sole(run) as second:
        assert (first, second) == (True, False)
        assert is_claimed(run)
    assert not list(run.iterdir())


def test_a_claim_of_another_machine_is_left_over_after_an_hour(tmp_path):
    mark = tmp_path / CLAIM
    for text in ("1 2.0 elsewhere", "", "\udcff".encode(errors="surrogateescape").decode("latin-1")):
        mark.write_text(text)
        assert is_claimed(tmp_path)
        assert not claim(tmp_path)
        os.utime(mark, (time.time() - 4000,) * 2)
        assert not is_claimed(tmp_path)
        assert claim(tmp_path)
        assert is_claimed(tmp_path)


def test_of_many_that_find_what_a_killed_process_has_left_one_takes_it_over(tmp_path, monkeypatch):
    os.waitpid(killed(lambda: claim(tmp_path)), 0)
    barrier, found, read = threading.Barrier(4), [], claims._read

    def slowly(mark):
        text = read(mark)
        time.sleep(0.01)
        return text

    monkeypatch.setattr(claims, "_read", slowly)

    def take():
        barrier.wait()
        found.append(claim(tmp_path))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [False, False, False, True]
    assert [each.name for each in tmp_path.iterdir()] == [CLAIM]


def test_who_comes_too_late_leaves_the_claim_of_the_one_that_took_over(tmp_path, monkeypatch):
    os.waitpid(killed(lambda: claim(tmp_path)), 0)
    read = claims._read
    monkeypatch.setattr(claims, "_read", lambda mark: (read(mark), monkeypatch.undo(), claim(tmp_path))[0])
    assert not claim(tmp_path)
    assert is_claimed(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [CLAIM]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the state of a process is not told")
def test_a_killed_process_that_nobody_waits_for_writes_no_more():
    child = killed(lambda: None)
    os.kill(child, 0)  # it can still be asked
    assert not has_run_since(child, time.time())
    os.waitpid(child, 0)
    assert has_run_since(os.getpid(), time.time())
    assert not has_run_since(os.getpid(), 1.0)
