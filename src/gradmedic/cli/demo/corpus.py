"""Real text that every CPython carries: the reference pages behind `help("topics")`."""

from __future__ import annotations

import torch
from torch import Tensor


class Corpus:
    """Characters of the text as integers, and random windows of them.

    Args:
        context: length T of a window.
        batch: number of windows B in a batch.
        seed: of the choice of windows; the model's own random numbers are not touched.
    """

    def __init__(self, context: int, batch: int, seed: int) -> None:
        text = reference_text()
        self.alphabet = sorted(set(text))
        codes = {character: code for code, character in enumerate(self.alphabet)}
        self.codes = torch.tensor([codes[character] for character in text])
        self.context, self.batch = context, batch
        self.generator = torch.Generator().manual_seed(seed)

    def sample(self) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets), both int64 [B, T]; a target is the character after its input."""
        starts = torch.randint(len(self.codes) - self.context - 1, (self.batch, 1), generator=self.generator)
        windows = self.codes[starts + torch.arange(self.context + 1)]
        return windows[:, :-1], windows[:, 1:]


def reference_text() -> str:
    """Return the pages, one after the other; characters outside ASCII (a handful) become "?"."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics)).encode("ascii", "replace").decode("ascii")
