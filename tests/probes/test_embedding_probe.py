"""Rows of an embedding that are used, against plain counting."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradmedic.probes.embeddings import EmbeddingCounts
from gradmedic.probes.graph import walk


def look(counts: EmbeddingCounts, module: nn.Module, loss: torch.Tensor) -> dict[str, dict[str, float]]:
    names = {id(p): (name, name.rpartition(".")[0]) for name, p in module.named_parameters()}
    rows = counts.rows(walk([loss]).nodes, lambda tensor: names.get(id(tensor)))
    assert all(row.what == "embedding" and row.leaf == "weight" for row in rows)
    return {row.module: {key: float(value) for key, value in row.extra.items()} for row in rows}


@given(st.lists(st.lists(st.integers(0, 11), min_size=1, max_size=40), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None)
def test_counts_are_those_of_all_batches(batches):
    net, counts = nn.ModuleDict({"table": nn.Embedding(12, 2, padding_idx=3)}), EmbeddingCounts()
    found = {}
    for ids in batches:
        found = look(counts, net, net["table"](torch.tensor(ids)).sum())["table"]
    seen, last = Counter(id_ for ids in batches for id_ in ids), Counter(batches[-1])
    total = sum(seen.values())
    assert found["rows"] == 12
    assert found["touched"] == len(seen)
    assert found["once"] == sum(n == 1 for n in seen.values())
    assert found["twice"] == sum(n == 2 for n in seen.values())
    assert found["lookups"] == total
    assert found["least"] == min(seen.values())
    assert found["top_share"] == pytest.approx(max(seen.values()) / total)
    assert found["pad_share"] == pytest.approx(seen[3] / total)
    assert (found["batches"], found["batch_touched"]) == (len(batches), len(last))


def test_one_table_asked_twice_a_table_in_a_bag_and_a_plain_tensor():
    net = nn.ModuleDict({"words": nn.Embedding(20, 3), "bag": nn.EmbeddingBag(30, 3), "tags": nn.Embedding(9, 3)})
    loss = net["words"](torch.tensor([[1, 2]])).sum() + net["words"](torch.tensor([[5]])).sum()
    loss = loss + net["bag"](torch.tensor([[7, 8, 8]])).sum() + F.embedding(torch.tensor([4]), net["tags"].weight).sum()
    found = look(EmbeddingCounts(), net, loss)
    assert {name: (each["rows"], each["touched"], each["lookups"]) for name, each in found.items()} == {
        "words": (20, 3, 3),
        "bag": (30, 2, 3),
        "tags": (9, 1, 1),
    }
    assert all(each["pad_share"] != each["pad_share"] for each in found.values())


def test_sparse_gradients_are_counted_as_well():
    net = nn.ModuleDict({"table": nn.Embedding(10, 2, sparse=True)})
    assert look(EmbeddingCounts(), net, net["table"](torch.tensor([1, 1, 4])).sum())["table"]["touched"] == 2
