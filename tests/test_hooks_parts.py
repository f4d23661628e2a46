"""The small parts by themselves: schedules, isolation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gradmedic as gm
from gradmedic.isolation import Isolation, part
from gradmedic.schedule import Escalation, every


@given(interval=st.integers(1, 50), step=st.integers(0, 10_000))
def test_an_interval_is_its_multiples(interval, step):
    """R58: `every` as an int."""
    assert every(interval)(step) == (step % interval == 0)


def test_a_callable_is_taken_as_it_is():
    """R58: `every` as a callable."""
    schedule = lambda step: step == 7  # noqa: E731
    assert every(schedule) is schedule


@pytest.mark.parametrize("interval", [0, -1, 1.5, "3", None, True])
def test_what_is_no_interval_is_refused(interval):
    """R58: a wrong `every` is explained."""
    with pytest.raises(gm.InputError, match="expected a positive number of steps or a callable"):
        every(interval)


def test_trouble_records_everything_for_a_while():
    """R58: after a trigger all steps are recorded, also those that the schedule leaves out; a later one prolongs it."""
    schedule = Escalation(every(10), steps=5)
    assert [step for step in range(12) if schedule(step)] == [0, 10]
    schedule.trigger(12)
    assert [step for step in range(12, 25) if schedule(step)] == [12, 13, 14, 15, 16, 17, 20]
    schedule.trigger(17)
    schedule.trigger(3)
    assert schedule(22)
    assert not schedule(23)
    assert schedule.escalated(22)
    assert not schedule.escalated(30)


class Worker:
    def __init__(self, strict: bool = False) -> None:
        self.reports: list[tuple[str, Exception]] = []
        self.isolation = Isolation(strict, lambda name, error: self.reports.append((name, error)))
        self.calls = 0

    @part("work")
    def work(self, value: int) -> int:
        self.calls += 1
        if value < 0:
            raise ValueError(value)
        return value + 1

    @part("outer")
    def outer(self, value: int) -> int | None:
        return self.work(value)


def test_a_part_fails_once_and_is_off():
    """R78: a part that raised returns None, is reported once, and is not called again; others go on."""
    worker = Worker()
    assert worker.work(1) == 2
    assert worker.work(-1) is None
    assert worker.work(1) is None
    assert worker.outer(1) is None
    assert worker.calls == 2
    assert [name for name, _ in worker.reports] == ["work"]
    assert worker.isolation.off == {"work"}


def test_strict_isolation_raises():
    """R78: in strict mode the error comes out."""
    with pytest.raises(ValueError, match="-1"):
        Worker(strict=True).outer(-1)


def test_interrupts_are_not_swallowed():
    """R78: SystemExit and KeyboardInterrupt are nobody's fault and pass through."""

    class Leaving(Worker):
        @part("leave")
        def leave(self):
            raise KeyboardInterrupt

    worker = Leaving()
    with pytest.raises(KeyboardInterrupt):
        worker.leave()
    assert worker.isolation.off == set()


def test_a_report_that_fails_is_given_up():
    """R78: when the report itself fails nothing is raised."""

    def report(_name, _error):
        raise OSError("disk full")

    isolation = Isolation(False, report)
    isolation.failed("part", ValueError())
    assert isolation.off == {"part", "report"}


def test_nested_stretches_are_counted_once():
    """R79: the time of a part inside a part is counted once."""
    worker = Worker()
    began = worker.isolation.enter()
    inner = worker.isolation.enter()
    worker.isolation.leave(inner)
    assert worker.isolation.seconds == 0.0
    worker.isolation.leave(began)
    assert 0 < worker.isolation.seconds < 1
