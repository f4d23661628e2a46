"""A transformer written to be debugged, in which the products of queries and keys are not divided by sqrt(d).

Every stage of attention is a module of its own, so that it has a name in the record: `scores` are the logits,
`weights` what the softmax makes of them. The check-up finds attention that is hard from the first step on.

    python examples/cases/attention_scale.py [--quick] [--out runs]
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradmedic as gm

LENGTH = 48
TEXT = "".join(topics[key] for key in sorted(topics))
ALPHABET = sorted(set(TEXT))


class Scores(nn.Module):
    """Attention logits [batch, heads, time, time] of queries and keys [batch, heads, time, d]."""

    def __init__(self, divided: bool) -> None:
        super().__init__()
        self.divided = divided

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        scores = queries @ keys.mT
        return scores / queries.shape[-1] ** 0.5 if self.divided else scores  # not divided: the mistake


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, divided: bool) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.scores = Scores(divided)
        self.weights = nn.Softmax(dim=-1)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        split = (each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.query, self.key, self.value))
        queries, keys, values = split
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        weights = self.weights(self.scores(queries, keys).masked_fill(later, float("-inf")))
        return self.out((weights @ values).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, divided: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, divided)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LanguageModel(nn.Module):
    """Ids [batch, LENGTH] to logits [batch, LENGTH, letters]; Xavier everywhere, as in "The Annotated Transformer"."""

    def __init__(self, divided: bool, width: int = 96, heads: int = 1, depth: int = 3) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads, divided) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(ALPHABET))
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.xavier_uniform_(weight)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.letters(ids) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(divided: bool, record: Path, steps: int, corpus: Tensor) -> list[gm.Finding]:
    torch.manual_seed(0)
    model = LanguageModel(divided)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with gm.watch(
        model, optimizer, record=record, overwrite=True, modules=["*.scores", "*.weights"], modules_every=20
    ) as monitor:
        for _ in range(steps):
            starts = torch.randint(len(corpus) - LENGTH - 1, (12, 1))
            ids = corpus[starts + torch.arange(LENGTH + 1)]
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return monitor.diagnose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps: seconds")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="runs and pictures go to OUT/attention_scale, anew each time"
    )
    args = parser.parse_args()
    out = args.out / "attention_scale"
    steps = 25 if args.quick else 180
    corpus = torch.tensor([ALPHABET.index(letter) for letter in TEXT[:100_000]])
    for name, divided in (("not_divided", False), ("divided", True)):
        findings = train(divided, out / name, steps, corpus)
        run = gm.open_run(out / name)
        print(f"{name}: loss {np.mean(run.series('loss')[-20:]):.3f} (mean of the last 20 steps)")
        print(*findings or ["nothing found"], sep="\n")
        figures = {
            "entropy": gm.plot.heads(run, metric="entropy", steps=slice(0, 3)),
            "scores": gm.plot.heatmap(run, metric="activation_rms", layers="*.scores"),
            "gradients": gm.plot.heatmap(run, metric="output_grad", layers="*.scores"),
            "loss": gm.plot.loss(run, findings=findings),
        }
        for figure, ax in figures.items():
            ax.figure.savefig(out / f"{figure}-{name}.png", dpi=80)


if __name__ == "__main__":
    main()
