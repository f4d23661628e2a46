"""Joining: whoever asks, there is one collective of each kind, in an order that all ranks share."""

from __future__ import annotations

import pytest
import torch

from gradmedic.stats import collective, joining
from gradmedic.stats.joining import Request, run, run_together
from gradmedic.stats.spans import Spans


class Doubling:
    """Two ranks that hold the same; notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        self.asked.append(("sum", values.numel()))
        return values * 2

    def maximum(self, values: torch.Tensor) -> torch.Tensor:
        self.asked.append(("max", values.numel()))
        return values


@pytest.fixture
def ranks(monkeypatch):
    made: dict[object, Doubling] = {}
    monkeypatch.setattr(joining, "collective_of", lambda mesh: made.setdefault(mesh, Doubling()))
    return made


def largest_then_sum(mesh, values):
    top = yield Request(mesh, values, largest=True)
    total = yield Request(mesh, values / top.max())
    return total * top.max()


def sum_only(mesh, values):
    return (yield Request(mesh, values))


def nothing():
    return 7
    yield  # makes it a generator


def test_all_that_wait_share_a_collective_and_sums_wait_for_maxima(ranks):
    one, two = torch.arange(1.0, 5.0), torch.ones(2, 3, dtype=torch.float64)
    found = run_together([sum_only("a", two), largest_then_sum("a", one), nothing()])
    torch.testing.assert_close(found[0], two * 2)
    torch.testing.assert_close(found[1], one * 2)
    assert found[2] == 7
    assert ranks["a"].asked == [("max", 4), ("sum", 10)]
    assert found[0].shape == two.shape
    assert found[0].dtype == two.dtype


def test_each_mesh_has_collectives_of_its_own(ranks):
    def both():
        first = yield Request("a", torch.ones(1))
        second = yield Request("b", first)
        return second

    found = run_together([both(), sum_only("b", torch.ones(3)), sum_only("a", torch.ones(2))])
    assert found[0].item() == 4
    assert ranks["a"].asked == [("sum", 3)]
    assert ranks["b"].asked == [("sum", 4)]


def test_one_alone(ranks):
    assert run(sum_only("a", torch.tensor(3.0))).item() == 6
    assert run_together([]) == []


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, float("inf")])
def test_spans_join_by_p_and_leave_out_copies(ranks, p):
    norms = torch.tensor([3.0, 4.0, 5.0, 100.0], dtype=torch.float64)
    spans = Spans(4, {("experts",): [1, 2], (): [3]})
    total, sick = spans.joint_norm(norms, torch.tensor([1, 0, 2, 50]), p)
    twice = torch.tensor([3.0, 4.0, 5.0, 4.0, 5.0], dtype=torch.float64)  # the other rank holds as much
    assert float(total) == pytest.approx(float(torch.linalg.vector_norm(twice, p)))
    assert int(sick) == 1 + 2 * 2


def test_a_group_that_has_nothing_here_is_asked_all_the_same(ranks):
    spans = Spans(1, {("experts",): []})
    total, _ = spans.joint_norm(torch.tensor([2.0], dtype=torch.float64), torch.zeros(1), 2.0)
    assert float(total) == 2.0
    assert ranks[("experts",)].asked == [("sum", 2)]


def test_a_collective_is_made_anew_once_the_job_is_another(monkeypatch):
    made = []
    monkeypatch.setattr(collective, "Collective", lambda groups: made.append(groups) or object())
    key = ("group",)
    assert collective.collective_of(key) is collective.collective_of(key)
    monkeypatch.setattr(collective, "_made_in", [object()])
    collective.collective_of(key)
    assert len(made) == 2
    collective._collectives.clear()
