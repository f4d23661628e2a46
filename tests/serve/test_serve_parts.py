import argparse
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from serve_client import record

from gradmedic.cli.serve import ServeCommand
from gradmedic.errors import InputError
from gradmedic.serve import Server
from gradmedic.serve.catalogue import Catalogue
from gradmedic.serve.feed import Feed
from gradmedic.serve.lanes import Lane
from gradmedic.serve.pace import Pace
from gradmedic.serve.server import bind
from gradmedic.serve.words import WORDS


def test_the_socket_is_bound_to_the_loopback_interface_only():
    with bind(0) as made:
        assert made.getsockname()[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_answered_with_one_that_is_free():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"port {port} is taken.*--port \d+") as caught:
            Server(["x"], port=port)
        free = int(str(caught.value).rpartition(" ")[2])
        bind(free).close()


@pytest.mark.parametrize("port", [-1, 65536])
def test_a_port_that_cannot_be(port):
    with pytest.raises(InputError, match="between 0 and 65535"):
        bind(port)


@pytest.mark.parametrize(
    ("missing", "extra"),
    [("starlette.applications", "serve"), ("uvicorn", "serve"), ("plotly.offline", "report")],
)
def test_what_is_not_installed_is_named(monkeypatch, missing, extra):
    real = importlib.import_module

    def without(name, package=None):
        if name == missing:
            raise ModuleNotFoundError(name, name=name)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(InputError, match=rf"pip install 'gradmedic\[{extra}\]'"):
        Server(["x"], port=0)


def test_a_file_is_not_waited_for(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(InputError, match=r"run.json' is a file; serve expects run folders"):
        Server([tmp_path / "run.json"], port=0)


def test_what_is_no_http_is_answered_and_prints_nothing(tmp_path, capfd):
    record(tmp_path / "exp", steps=1)
    with Server([tmp_path / "exp"], port=0) as server:
        port = int(server.url.rstrip("/").rpartition(":")[2])
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), timeout=10) as asked:
                asked.sendall(b"what is this\r\n\r\n")
                assert b"400" in asked.recv(1000).split(b"\r\n")[0]
    assert capfd.readouterr().err == ""


def test_importing_the_command_imports_no_server(monkeypatch):
    heavy = ("starlette", "uvicorn", "plotly", "torch")
    code = f"import sys, gradmedic.cli.serve; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_pace_is_no_more_than_its_share():
    pace = Pace(least=0.0, times=4.0)
    assert pace.due
    with pace:
        begun = time.thread_time()
        while time.thread_time() - begun < 0.05:
            pass
    assert pace.cost >= 0.05
    assert not pace.due
    time.sleep(4 * pace.cost + 0.02)
    assert pace.due


def test_waiting_costs_nothing():
    pace = Pace(least=0.0)
    with pace:
        time.sleep(0.1)
    assert pace.cost < 0.05


def test_a_pace_counts_what_fails_too():
    pace = Pace(least=60.0)
    with pytest.raises(KeyError), pace:
        raise KeyError
    assert not pace.due


def test_work_in_a_lane_is_done_one_after_the_other():
    lane, running, most, done = Lane("test"), [], [], threading.Event()

    def work():
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()
        if len(most) == 5:
            done.set()

    for _ in range(5):
        lane.run(work)
    assert done.wait(5)
    assert max(most) == 1


def test_numbers_of_runs_never_change(tmp_path):
    record(tmp_path / "b", steps=1)
    catalogue = Catalogue([tmp_path / "missing", tmp_path], "en")
    first = {entry["name"]: entry["id"] for entry in catalogue.listing()}
    assert first == {"missing": 0, "b": 1}
    for name in ("a", "c"):
        record(tmp_path / name, steps=1)
    time.sleep(1.1)
    second = {entry["name"]: entry["id"] for entry in catalogue.listing()}
    assert second.items() >= first.items()
    assert len(set(second.values())) == 4
    assert catalogue.count() == 3
    assert catalogue.feed(9) is None


def test_a_folder_of_many_runs_shows_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr("gradmedic.serve.catalogue.MOST_RUNS", 3)
    for at in range(6):
        (tmp_path / str(at)).mkdir()
        (tmp_path / str(at) / "run.json").write_text("{}")
        os.utime(tmp_path / str(at) / "run.json", (at, at))
    assert [entry["name"] for entry in Catalogue([tmp_path], "en").listing()] == ["5", "4", "3"]


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path):
    for place in ("old", "new"):
        record(tmp_path / place / "exp", steps=1)
    catalogue = Catalogue([tmp_path / "old" / "exp", tmp_path / "new" / "exp", tmp_path / "old" / "exp"], "en")
    assert [entry["name"] for entry in catalogue.listing()] == ["old/exp", "new/exp"]


def test_a_run_that_has_ended_and_that_nobody_looks_at_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("gradmedic.serve.feed._IDLE_SECONDS", 0.0)
    monkeypatch.setattr("gradmedic.serve.feed._LOOK_SECONDS", 0.0)
    record(tmp_path / "exp", steps=3)
    feed = Feed(tmp_path / "exp", "en", Lane("tables"), Lane("judging"))
    feed.look()
    looked = feed.looked
    assert feed.summary()["ended"]
    time.sleep(0.05)
    feed.look()
    assert feed.looked == looked
    record(tmp_path / "exp", steps=2, start=3, join=True)
    time.sleep(0.05)
    feed.look()
    assert feed.summary()["steps"] == 5


def test_both_languages_say_the_same_things():
    assert WORDS["en"].keys() == WORDS["zh"].keys()


def test_the_command_line(tmp_path):
    """The address is printed, the browser is opened at it, and Ctrl-C ends it quietly."""
    record(tmp_path / "exp", steps=1)
    code = (
        "import sys, argparse, webbrowser\n"
        "from gradmedic.cli.serve import ServeCommand\n"
        "webbrowser.open = lambda url: print('opened', url, flush=True)\n"
        "command, parser = ServeCommand(), argparse.ArgumentParser()\n"
        "command.prepare_parser(parser)\n"
        "sys.exit(command.run(parser.parse_args(), parser))\n"
    )
    arguments = [sys.executable, "-c", code, str(tmp_path), "--port", "0", "--open", "--lang", "en"]
    started = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = started.stderr.readline()
        assert said.startswith("gradmedic: one run at http://127.0.0.1:")
        opened = started.stdout.readline().split()
        assert opened[0] == "opened"
        assert opened[1] in said
        started.send_signal(signal.SIGINT)
        assert started.wait(15) == 0
        assert started.stderr.read() == ""
    finally:
        started.kill()
        started.wait()


def test_every_option_has_its_help():
    parser = argparse.ArgumentParser()
    command = ServeCommand()
    command.prepare_parser(parser)
    assert all(action.help for action in parser._actions)
    assert parser.parse_args(["a", "b"]).runs == ["a", "b"]
    with pytest.raises(SystemExit):
        parser.parse_args([])
    assert command.example.startswith("example: gradmedic serve ")
