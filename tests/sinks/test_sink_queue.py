"""Behind its queue a sink may do what it likes: training does not wait, nothing is lost in silence."""

from __future__ import annotations

import os
import threading
import time

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gradmedic as gm
from gradmedic.sinks import feed
from gradmedic.sinks import queued as queued_module
from gradmedic.sinks.base import BaseSink, RunLabel
from gradmedic.sinks.queued import Queued, describe


class Keep:
    def __init__(self):
        self.calls, self.threads = [], set()

    def emit(self, frame):
        self.calls.append(("emit", frame))
        self.threads.add(threading.get_ident())

    def emit_finding(self, finding):
        self.calls.append(("finding", finding))

    def close(self):
        self.calls.append(("close", None))
        self.threads.add(threading.get_ident())


class Blocked(Keep):
    """Blocks for ever, until the test lets it go."""

    def __init__(self):
        super().__init__()
        self.entered, self.free = threading.Event(), threading.Event()

    def emit(self, frame):
        self.entered.set()
        self.free.wait(30)
        super().emit(frame)


class Failing(Keep):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def emit(self, frame):
        super().emit(frame)
        raise self.error


def train(monitor_arguments, steps=5, model=None):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, **monitor_arguments) as monitor:
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.ones(2, 4) * (step + 1)).square().mean().backward()
            optimizer.step()
            monitor.log(step_again=step)
    return monitor, [parameter.detach().clone() for parameter in model.parameters()]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["emit", "emit_finding"]), max_size=30))
def test_all_arrives_in_order_and_in_one_other_thread(methods):
    sink = Keep()
    queue = Queued(sink)
    for at, method in enumerate(methods):
        getattr(queue, method)(at)
    queue.close()
    assert [content for _, content in sink.calls] == [*range(len(methods)), None]
    assert sink.calls[-1][0] == "close"
    assert len(sink.threads) == 1
    assert threading.get_ident() not in sink.threads
    assert (queue.sent, queue.dropped, queue.trouble) == (len(methods), 0, None)


def test_a_blocked_sink_costs_a_bounded_wait_and_all_is_counted():
    sink = Blocked()
    queue = Queued(sink, capacity=3, patience=0.1)
    queue.emit(0)
    assert sink.entered.wait(5)
    began = time.perf_counter()
    for at in range(1, 10):
        queue.emit(at)
    queue.emit_finding("there is room for it")
    assert time.perf_counter() - began < 0.5
    assert queue.dropped == 6  # 1, 2 and 3 wait
    queue.close()
    assert time.perf_counter() - began < 5
    assert "did not finish" in queue.trouble
    sink.free.set()


def test_what_waits_is_bounded_by_its_size(monkeypatch):
    monkeypatch.setattr(queued_module, "_MOST_NUMBERS", 1000)
    sink = Blocked()
    queue = Queued(sink, patience=0.1)
    queue.emit("first")
    assert sink.entered.wait(5)
    for _ in range(100):
        queue.emit("64 numbers each")
    assert 80 <= queue.dropped <= 85
    sink.free.set()
    queue.close()


@pytest.mark.parametrize("error", [OSError("no route"), SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_a_sink_that_raises_is_off_and_still_closed(error):
    sink = Failing(error)
    queue = Queued(sink)
    queue.emit(1)
    queue.emit(2)
    queue.close()
    assert queue.off
    assert [name for name, _ in sink.calls] == ["emit", "close"]
    assert queue.trouble.startswith(type(error).__name__)


def test_a_server_that_comes_back_is_used_again(monkeypatch):
    monkeypatch.setattr(queued_module, "_FIRST_PAUSE", 0.05)

    got = []

    class Away(BaseSink):
        keeps_trying = True

        def write(self, frame):
            if len(got) == 1 and frame < 3:
                raise ConnectionError("away")
            got.append(frame)

    queue = Queued(Away())
    queue._pause = 0.05
    for at in range(3):
        queue.emit(at)
    deadline = time.monotonic() + 5
    while queue.dropped < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    queue.emit(3)
    queue.close()
    assert got == [0, 3]
    assert (queue.sent, queue.dropped, queue.off, queue.trouble) == (2, 2, False, "ConnectionError: away")


def test_a_missing_library_is_not_tried_again():
    class Missing(BaseSink):
        keeps_trying = True

        def open(self):
            raise gm.InputError("needs the package zzz")

        def write(self, frame): ...

    queue = Queued(Missing())
    queue.emit(1)
    queue.close()
    assert queue.off
    assert queue.trouble == "needs the package zzz"


def test_what_is_held_back_is_flushed(monkeypatch):
    monkeypatch.setattr(queued_module, "_QUIET_SECONDS", 0.02)
    flushed = threading.Event()

    class Holding(BaseSink):
        def write(self, frame):
            self.holding = True

        def flush(self):
            self.holding = False
            flushed.set()

    queue = Queued(Holding())
    queue.emit(1)
    assert flushed.wait(5)
    queue.close()


def test_a_forked_child_leaves_the_parents_sink_alone():
    sink = Keep()
    queue = Queued(sink)
    queue.emit(1)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        queue.emit(2)
        queue.close()
        os.write(writing, b"%d" % len(sink.calls))
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reading, 8)) <= 1
    queue.close()
    assert [content for name, content in sink.calls if name == "emit"] == [1]


def test_secrets_and_escapes_are_not_in_what_is_said():
    text = describe(OSError("cannot reach https://x/secret\n\x1b[31m now"), ("https://x/secret", ""))
    assert text == "OSError: cannot reach *** [31m now"
    assert describe(ValueError()) == "ValueError"


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_every_sentence_is_in_both_languages(lang):
    from gradmedic.sinks.words import WORDS, words

    assert WORDS[lang].keys() == WORDS["en"].keys()
    assert words("fr") == WORDS["en"]
    values = {
        "sink": "s",
        "why": "w",
        "step": 1,
        "seconds": 1.0,
        "dropped": 2,
        "all": 3,
        "run": "r",
        "n": 4,
        "text": "t",
    }
    for sentence in words(lang).values():
        assert "{" not in sentence.format(**values)


def test_training_is_bit_identical_and_frames_are_final():
    _, plain = train({})
    sink = Keep()
    monitor, watched = train({"sinks": [sink]})
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))
    frames = [content for name, content in sink.calls if name == "emit"]
    assert [frame.step for frame in frames] == list(range(5))
    assert [frame.logged["step_again"] for frame in frames] == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert monitor.overhead.seconds > 0


def test_a_direct_sink_is_called_at_once_in_this_thread():
    class Direct(Keep):
        direct = True

    sink = Direct()
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gm.watch(model, optimizer, sinks=[sink]):
        model(torch.ones(2, 4)).mean().backward()
        optimizer.step()
        assert [name for name, _ in sink.calls] == ["emit"]
    assert sink.threads == {threading.get_ident()}


def test_a_slow_sink_is_said_once_and_recorded(capfd):
    class Slow(Blocked):
        pass

    sink = Slow()
    monitor, _ = train({"sinks": [Queued(sink, capacity=1, patience=0.2)]}, steps=20)
    sink.free.set()
    said = capfd.readouterr().err
    assert said.count("is slower than the training") == 1
    assert said.count("did not finish within") == 1
    (event,) = [event for event in monitor.run.events if event["kind"] == "sink"]
    assert event["sink"] == "sink Slow"
    assert event["dropped"] >= 18
    assert [event["kind"] for event in monitor.run.events][-1] == "end"


def test_a_failing_sink_is_said_once_and_recorded(capfd):
    monitor, _ = train({"sinks": [Failing(SystemExit("gone")), Keep()]}, steps=10)
    said = capfd.readouterr().err
    assert said.count("sink Failing gets nothing more: SystemExit: gone; training goes on") == 1
    (event,) = [event for event in monitor.run.events if event["kind"] == "error"]
    assert event["part"] == "sink Failing"
    assert monitor.run.steps.num_rows == 10


class Unreachable(Keep):
    keeps_trying = True

    def emit(self, frame):
        raise ConnectionError("refused")


def test_what_a_dead_server_did_not_get_is_said_once_at_the_end(capfd):
    train({"sinks": [Unreachable()]}, steps=10)
    said = capfd.readouterr().err.splitlines()
    assert len([line for line in said if "is tried again from time to time" in line]) == 1
    lost = "gradmedic: sink Unreachable was not given 11 of 11 entries; the run's record has them all"
    assert said[-1] == lost  # ten steps and a finding
    train({"sinks": [Failing(OSError("gone"))]}, steps=10)
    assert "entries" not in capfd.readouterr().err  # off, which was said


def test_a_long_wait_at_the_end_is_explained(capfd, monkeypatch):
    monkeypatch.setattr(feed, "_SILENT_SECONDS", 0.05)
    sink = Blocked()
    threading.Timer(0.4, sink.free.set).start()
    train({"sinks": [sink, Keep()]}, steps=2)
    said = [line for line in capfd.readouterr().err.splitlines() if "waiting" in line]
    assert said == ["gradmedic: waiting for sink Blocked to write the rest, 10 s at most"]
    assert [name for name, _ in sink.calls] == ["emit", "emit", "close"]


def test_only_rank_0_feeds_sinks(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    sink = Keep()
    train({"sinks": [sink]})
    assert [name for name, _ in sink.calls] == ["close"]


def test_a_sink_of_ours_learns_which_run_it_is(tmp_path):
    seen = []

    class Named(BaseSink):
        def write(self, frame):
            seen.append(self.run)

    train({"sinks": [Named()], "record": tmp_path / "exp7"}, steps=1)
    assert seen[0].name == "exp7"
    assert seen[0].host
    assert RunLabel().rank == seen[0].rank == 0


def test_a_finding_reaches_the_sinks():
    sink = Keep()
    train({"sinks": [sink], "limits": 1e-9})
    assert [content.code for name, content in sink.calls if name == "finding"] == ["GM412"]
