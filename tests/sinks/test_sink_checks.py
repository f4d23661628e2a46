"""What cannot work is said by the constructor, in one sentence."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sink_frames import frame

import gradmedic as gm
from gradmedic.sinks.base import BaseSink
from gradmedic.sinks.queued import Queued, _numbers_of


class Quiet:
    def emit(self, frame): ...

    def emit_finding(self, finding): ...

    def close(self): ...


@pytest.mark.parametrize("seconds", ["x", None, True, float("inf"), float("nan"), -1, -1e-9, 10**400])
def test_patience_and_interval_are_finite_numbers(seconds):
    with pytest.raises(gm.InputError, match="patience: expected a finite number"):
        Queued(Quiet(), patience=seconds)
    with pytest.raises(gm.InputError, match="interval: expected a finite number"):
        gm.sinks.Webhook("https://h.example/x", interval=seconds)


@pytest.mark.parametrize("capacity", [0, -1, "x", None, True, 1.5, float("nan")])
def test_a_capacity_is_a_whole_number(capacity):
    with pytest.raises(gm.InputError, match="capacity: expected a whole number of at least 1"):
        Queued(Quiet(), capacity=capacity)


@pytest.mark.parametrize("sink", [Quiet, gm.sinks.Csv, None, object(), "csv:x"])
def test_a_sink_is_an_object_with_three_methods(sink):
    with pytest.raises(gm.InputError, match="Queued: "):
        Queued(sink)
    model = torch.nn.Linear(1, 1)
    with pytest.raises(gm.InputError, match="sinks: "):
        gm.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), sinks=[sink])
    assert not model.weight._backward_hooks


def test_a_class_is_told_from_its_instance():
    with pytest.raises(gm.InputError, match=r"got the class Csv; make one: Csv\(\.\.\.\)"):
        Queued(gm.sinks.Csv)


def test_the_patience_of_a_sink_of_ours_is_checked_before_training():
    class Odd(BaseSink):
        patience = "bad"

    model = torch.nn.Linear(1, 1)
    with pytest.raises(gm.InputError, match="patience of Odd: expected a finite number"):
        gm.watch(model, sinks=[Odd()])


@pytest.mark.parametrize("arguments", [{"host": 5}, {"host": " "}, {"top_layers": True}, {"top_layers": "x"}])
def test_a_server_has_a_host(arguments):
    with pytest.raises(gm.InputError, match="Prometheus: "):
        gm.sinks.Prometheus(**arguments)


def test_any_finite_patience_can_be_waited_for():
    queue = Queued(Quiet(), patience=1e300)
    queue.emit(frame(0))
    queue.close()
    assert (queue.sent, queue.trouble) == (1, None)


def test_a_sink_whose_holding_raises_is_off():
    class Odd(BaseSink):
        holding = property(lambda self: 1 / 0, lambda self, value: None)

    queue = Queued(Odd())
    queue.close()
    assert queue.off
    assert queue.trouble.startswith("ZeroDivisionError")


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(max_size=300), st.floats(), max_size=50))
def test_what_is_logged_counts_as_what_waits(logged):
    extra = 8 * (_numbers_of(frame(0, logged=logged)) - _numbers_of(frame(0)))
    assert extra >= sum(len(key) + 24 + 8 for key in logged) - 8  # characters, a float, a pointer each
    if logged:
        assert extra >= 8 * len(logged)


def test_a_direct_sink_may_raise_but_an_end_of_the_program_is_the_hosts(capfd):
    class Direct(Quiet):
        direct = True

        def __init__(self, error):
            self.error = error

        def emit(self, frame):
            raise self.error

    def train(error):
        model = torch.nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with gm.watch(model, optimizer, sinks=[Direct(error)]):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()

    train(OSError("gone"))
    assert capfd.readouterr().err.count("OSError: gone") == 1
    with pytest.raises(SystemExit):  # as from a signal handler that calls sys.exit
        train(SystemExit(4))
