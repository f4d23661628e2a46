"""Who reads which text, and whether the targets are its next tokens."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gradmedic.probes.attention import measure_attention
from gradmedic.probes.graph import walk
from gradmedic.probes.loss_graph import find_losses
from gradmedic.probes.node_values import operation
from gradmedic.probes.token_feeds import next_token_numbers, reversed_rows, token_feeds

T, B, V, D = 10, 6, 20, 8


@settings(deadline=None, max_examples=30)
@given(
    batch=st.integers(2, 5), length=st.integers(5, 9), major=st.booleans(), cut=st.booleans(), seed=st.integers(0, 99)
)
def test_next_tokens_are_found_in_every_layout(batch, length, major, cut, seed):
    torch.manual_seed(seed)
    text = torch.randint(0, 1000, (batch, length + 1))
    ids, target = (text, text[:, 1:]) if cut else (text[:, :-1], text[:, 1:])
    if major:
        ids, target = ids.t().contiguous(), target.t().contiguous()
    numbers = next_token_numbers(ids, target.reshape(-1))
    assert float(numbers["next_share"]) == 1.0
    assert float(numbers["same_share"]) < 0.5
    other = next_token_numbers(ids, torch.randint(0, 1000, (target.numel(),)))
    assert float(other["next_share"]) < 0.5


def test_targets_that_do_not_count_are_left_out():
    text = torch.randint(0, 1000, (4, 9))
    target = text[:, 1:].clone()
    target[:, :4] = -100
    numbers = next_token_numbers(text[:, :-1], target)
    assert float(numbers["next_share"]) == 1.0
    assert float(numbers["kept_share"]) == 0.5
    assert next_token_numbers(text[:, :-1], torch.zeros(7, dtype=torch.long)) == {}


def attend(q, k, v, *, causal: bool, fused: bool):
    if fused:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones(q.shape[-2], k.shape[-2]).triu(1).bool(), -math.inf)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_on_later_places(fused, causal):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, T, D, requires_grad=True) for _ in range(3))
    nodes = walk([attend(q, k, v, causal=causal, fused=fused).sum()]).nodes
    node = next(each for each in nodes if operation(each).startswith(("ScaledDotProduct", "Softmax")))
    weights = (q @ k.transpose(-2, -1) / math.sqrt(D)).softmax(-1)
    expected = 0.0 if causal else weights.triu(1).sum(-1)[..., :-1].mean().item()
    assert float(measure_attention(node)["ahead"]) == pytest.approx(expected, abs=1e-5)


def test_cross_attention_has_no_later_places():
    q, k = torch.randn(2, 3, T, D, requires_grad=True), torch.randn(2, 3, T + 2, D)
    node = next(
        each for each in walk([attend(q, k, k, causal=False, fused=False).sum()]).nodes if operation(each) == "Softmax"
    )
    assert "ahead" not in measure_attention(node)


def feeds_of(loss):
    nodes = walk([loss]).nodes
    return nodes, token_feeds(nodes, find_losses([loss]))


def test_added_embeddings_are_one_text_and_attended_ones_are_two():
    tokens, kinds, source, head = (nn.Embedding(V, D) for _ in range(4))
    text, other = torch.randint(0, V, (B, T + 1)), torch.randint(0, V, (B, T))
    h = tokens(text[:, :-1]) + kinds(torch.zeros(B, T, dtype=torch.long))
    own = attend(h, h, h, causal=False, fused=False)
    far = source(other)
    both = own + attend(h, far, far, causal=False, fused=False)
    nodes, feeds = feeds_of(F.cross_entropy((both @ head.weight.t()).reshape(-1, V), text[:, 1:].reshape(-1)))
    softmaxes = [node for node in nodes if operation(node) == "Softmax"]
    assert len(softmaxes) == 2
    assert float(feeds.numbers(softmaxes[0])["next_share"]) == 1.0
    assert feeds.numbers(softmaxes[1]) == {}  # it reads both


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("both_ways", [True, False])
def test_layers_that_read_from_the_end(kind, both_ways):
    embedding, layer = nn.Embedding(V, D), kind(D, D, batch_first=True, bidirectional=both_ways)
    head = nn.Linear(D * (1 + both_ways), V)
    names = {id(p): (f"layer.{name}", "layer") for name, p in layer.named_parameters()}
    text = torch.randint(0, V, (B, T + 1))
    loss = F.cross_entropy(head(layer(embedding(text[:, :-1]))[0]).reshape(-1, V), text[:, 1:].reshape(-1))
    nodes, feeds = feeds_of(loss)
    rows = reversed_rows(nodes, feeds, lambda leaf: names.get(id(leaf)))
    assert [row.module for row in rows] == (["layer"] if both_ways else [])
    assert all(float(row.extra["next_share"]) == 1.0 for row in rows)
