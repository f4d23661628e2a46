"""Names of what is measured before the models of an unmodified script are known."""

from __future__ import annotations

import gc

import torch
from torch import nn
from torch.nn import functional as F

import gradmedic as gm
from gradmedic.facts import LossFact
from gradmedic.probes.late_names import LateNames
from gradmedic.probes.module_stats import ModuleSample
from gradmedic.watching import watch_process


class Reader(nn.Module):
    """An embedding, attention that is written out, a loop over time, and a rectifier."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 8)
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))
        self.cell = nn.RNNCell(8, 8)
        self.out = nn.Linear(8, 7)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.table(ids)
        x = torch.relu((self.query(x) @ self.key(x).transpose(-2, -1)).softmax(-1) @ self.value(x))
        state = torch.zeros(len(ids), 8)
        for at in range(ids.shape[1]):
            state = self.cell(x[:, at], state)
        return self.out(state)


def rows(monitor: gm.Monitor) -> list[set[tuple[str, str, int, str]]]:
    """(module, what, call, leaf) of each step's rows; those of module hooks are left out."""
    return [
        {
            (row["module"].removeprefix("Reader").lstrip("._0123456789"), row["what"], row["call"], row["leaf"])
            for row in frame.modules
            if row["what"] not in ("output", "grad_output")
        }
        for frame in monitor.run.frames()
    ]


def train(model: Reader, optimizer: torch.optim.Optimizer, steps: int = 4) -> None:
    for _ in range(steps):
        ids = torch.randint(0, 7, (6, 10))
        optimizer.zero_grad()
        F.cross_entropy(model(ids), ids[:, 0]).backward()
        optimizer.step()


def test_the_first_step_of_a_script_is_named_like_all_others():
    torch.manual_seed(0)
    gc.collect()
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch_process(record=None, strict=True) as found:
        train(model, optimizer)
    with gm.watch(model, optimizer, strict=True) as given:
        train(model, optimizer)
    expected = rows(given)
    assert {what for _, what, _, _ in expected[0]} >= {"loss", "activation", "attention", "embedding", "recurrent"}
    assert rows(found)[0] == expected[0]
    assert rows(found)[1] == expected[1]
    losses = found.run.events[0]["facts"]["losses"] if "facts" in found.run.events[0] else []
    assert {loss["module"].rpartition(".")[2] for loss in losses} == {"out"}


def test_counts_of_the_first_step_go_on_under_the_name():
    """Rows of the table that were asked for in step 0 are among those seen in step 1."""
    torch.manual_seed(0)
    model = Reader()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with watch_process(record=None, strict=True) as monitor:
        train(model, optimizer, 3)
    lookups = [row["extra"] for frame in monitor.run.frames() for row in frame.modules if row["what"] == "embedding"]
    assert [each["batches"] for each in lookups] == [1, 2, 3]
    assert [each["lookups"] for each in lookups] == [60, 120, 180]


def test_parameters_that_nobody_has_stay_without_a_name():
    stranger, other = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))
    named: dict[int, tuple[str, str]] = {}
    late = LateNames(lambda leaf: named.get(id(leaf)), lambda: True)
    placeholders = [late.name_of(each) for each in (stranger, other, stranger)]
    assert placeholders[0] == placeholders[2] != placeholders[1]
    samples = [ModuleSample(found[1], "activation", leaf="Relu") for found in placeholders if found]
    fact = LossFact(0, "mse", module=samples[1].module)
    late.keep([fact])
    named[id(other)] = ("layer.weight", "layer")
    late.name_facts()
    assert fact.module == "layer"
    late.settle(samples)
    assert [sample.module for sample in samples] == ["", "layer", ""]
    assert late.name_of(stranger) is None
    assert late.name_of(other) == ("layer.weight", "layer")


def test_two_parameters_of_one_module_are_told_apart_by_call():
    weights = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    named: dict[int, tuple[str, str]] = {}
    late = LateNames(lambda leaf: named.get(id(leaf)), lambda: True)
    modules = [late.name_of(weight)[1] for weight in weights]
    samples = [ModuleSample(module, "attention") for module in (*modules, *modules)]
    named |= {id(weight): (f"attn.{name}", "attn") for weight, name in zip(weights, "qk", strict=True)}
    late.settle(samples)
    assert [(sample.module, sample.call) for sample in samples] == [("attn", 0), ("attn", 1), ("attn", 0), ("attn", 1)]


def test_nothing_is_awaited_where_models_are_given():
    late = LateNames(lambda _leaf: None, lambda: False)
    assert late.name_of(nn.Parameter(torch.zeros(2))) is None
