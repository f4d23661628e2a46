"""A tiny BERT from a `transformers` configuration, its loss on masked words, and faults on the way forward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from crash_faults import Fault, Kind, flip_exponent_bit, pick
from crash_text import LENGTH, VOCABULARY, Batch

WIDTH, LAYERS, HEADS = 64, 2, 2


def require_transformers() -> None:
    """End the program with what to install, if `transformers` is missing."""
    if find_spec("transformers") is None:
        raise SystemExit('this benchmark trains a model of transformers: pip install "transformers>=5"')


def make_bert(seed: int) -> Any:
    """Return a post-norm BERT with a masked-language-model head, 0.1 M parameters, no dropout."""
    from transformers import BertConfig, BertForMaskedLM  # type: ignore[import-not-found, unused-ignore]

    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        max_position_embeddings=LENGTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="eager",
    )
    return BertForMaskedLM(config).train()


def masked_loss(model: Any, batch: Batch) -> torch.Tensor:
    """Return the mean cross-entropy of the masked words; the head only looks at these."""
    hidden = model.bert(input_ids=batch.ids).last_hidden_state
    rows = torch.arange(len(batch.ids))[:, None]
    return cross_entropy(model.cls(hidden[rows, batch.positions]).flatten(0, 1), batch.labels.flatten())


def held_out_loss(model: Any, batches: list[Batch]) -> float:
    """Return the mean loss of batches, without training."""
    with torch.no_grad():
        return float(torch.stack([masked_loss(model, batch) for batch in batches]).mean())


@contextmanager
def disturbed(model: Any, fault: Fault | None) -> Iterator[None]:
    """Let a fault happen in the forward pass: inputs that are too large, or a bit that flips in an activation."""
    if fault is None or fault.kind not in (Kind.INPUTS, Kind.ACTIVATION):
        yield
        return

    def enlarge(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        return output * 1000

    def flip(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        changed = output.clone(memory_format=torch.contiguous_format)
        flip_exponent_bit(changed, pick(fault.place, changed.numel()), fault.bit)
        return changed

    if fault.kind is Kind.INPUTS:
        handle = model.bert.embeddings.register_forward_hook(enlarge)
    else:
        handle = model.bert.encoder.layer[pick(fault.layer, LAYERS)].intermediate.register_forward_hook(flip)
    try:
        yield
    finally:
        handle.remove()
