"""Real text without a download: Python's own help topics as words, some of them masked."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import torch

VOCABULARY, LENGTH, BATCH, MASKED = 512, 64, 8, 10
UNKNOWN, MASK = 0, 1
#: Share of the words that are held out, at the end of the text; batches of them that are judged.
HELD, HELD_BATCHES = 0.1, 16


@dataclass(frozen=True)
class Batch:
    """Token ids [B, T], the masked ones hidden; their positions [B, M] and labels [B, M]."""

    ids: torch.Tensor
    positions: torch.Tensor
    labels: torch.Tensor


@dataclass(frozen=True)
class Text:
    """Token ids [N] to learn from, and to be judged by."""

    train: torch.Tensor
    held: torch.Tensor


def read_text() -> Text:
    """Return `pydoc_data.topics` as ids of its most frequent words, numbers and signs; all others are UNKNOWN."""
    from pydoc_data.topics import topics

    words = re.findall(r"[a-z_]+|[0-9]+|[^\sa-z_0-9]", "\n".join(topics[key] for key in sorted(topics)).lower())
    counts = Counter(words)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[: VOCABULARY - 2]
    number = {word: at for at, word in enumerate(frequent, start=2)}
    ids = torch.tensor([number.get(word, UNKNOWN) for word in words])
    cut = int(len(ids) * (1 - HELD))
    return Text(ids[:cut], ids[cut:])


def draw_batch(ids: torch.Tensor, seed: int) -> Batch:
    """Return BATCH passages from anywhere in the text, MASKED words of each replaced by MASK."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(ids) - LENGTH, (BATCH, 1), generator=generator)
    passages = ids[starts + torch.arange(LENGTH)]
    positions = torch.rand(BATCH, LENGTH, generator=generator).argsort(1)[:, :MASKED]
    labels = passages.gather(1, positions)
    return Batch(passages.scatter(1, positions, MASK), positions, labels)


def held_batches(text: Text) -> list[Batch]:
    """Return the batches that every arm is judged by."""
    return [draw_batch(text.held, 10**9 + at) for at in range(HELD_BATCHES)]


def alike(batch: Batch) -> Batch:
    """Return the batch as if every word of every passage were the first one's."""
    word = int(batch.labels[0, 0])
    ids = torch.full_like(batch.ids, word).scatter(1, batch.positions, MASK)
    return Batch(ids, batch.positions, torch.full_like(batch.labels, word))


def mislabelled(batch: Batch, seed: int) -> Batch:
    """Return the batch with labels at random."""
    generator = torch.Generator().manual_seed(seed)
    return Batch(batch.ids, batch.positions, torch.randint(2, VOCABULARY, batch.labels.shape, generator=generator))
