"""A 12-layer transformer language model with a clipping policy of its own for each kind of layer.

The same training four times, on the text of Python's own manual, at a learning rate that is too high without
clipping: unclipped, with a limit for the joint norm, with one for each embedding, attention and feed-forward layer, and
with both.

    python examples/cases/transformer_policies.py [--quick] [--out runs]
"""

import argparse
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradmedic as gm

LENGTH = 32
TEXT = "".join(topics[key] for key in sorted(topics))
ALPHABET = sorted(set(TEXT))

BY_KIND = gm.clip.layers(
    {
        "Embedding": 10.0,
        "MultiheadAttention": 0.5,
        "FeedForward": 1.0,
    }
)
POLICIES = {
    "unclipped": None,
    "joint": gm.clip.norm(1.0),
    "by_kind": BY_KIND,
    "by_kind_and_joint": gm.clip.chain(BY_KIND, gm.clip.norm(1.0)),
}


class FeedForward(nn.Sequential):
    def __init__(self, width: int) -> None:
        super().__init__(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed_forward = FeedForward(width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normal = self.norm1(x)
        x = x + self.attention(normal, normal, normal, attn_mask=mask, need_weights=False)[0]
        return x + self.feed_forward(self.norm2(x))


class LanguageModel(nn.Module):
    """Ids [batch, LENGTH] to logits [batch, LENGTH, letters]."""

    def __init__(self, width: int = 48, depth: int = 12) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(ALPHABET), width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, len(ALPHABET))

    def forward(self, ids: Tensor) -> Tensor:
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        x = self.letters(ids) + self.places.weight
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def train(transform: Any, record: Path, steps: int, corpus: Tensor) -> list[gm.Finding]:
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    with gm.watch(model, optimizer, record=record, overwrite=True, transform=transform) as monitor:
        for _ in range(steps):
            starts = torch.randint(len(corpus) - LENGTH - 1, (8, 1))
            ids = corpus[starts + torch.arange(LENGTH + 1)]
            loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return monitor.diagnose()


def clipped_by_kind(run: gm.Run) -> dict[str, tuple[float, float]]:
    """Return, by kind of layer, the share of (step, tensor) that was scaled down, and the median factor of those."""
    _, names, factors = run.matrix("clip_scale")
    kinds = {"embedding": ("letters", "places"), "attention": (".attention.",), "feed-forward": (".feed_forward.",)}
    found = {}
    for kind, parts in kinds.items():
        own = factors[:, [any(part in name for part in parts) for name in names]]
        below = own[own < 1]
        found[kind] = (below.size / own.size, float(np.median(below)) if below.size else 1.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps: seconds")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs"),
        help="runs and pictures go to OUT/transformer_policies, anew each time",
    )
    args = parser.parse_args()
    out = args.out / "transformer_policies"
    steps = 16 if args.quick else 120
    corpus = torch.tensor([ALPHABET.index(letter) for letter in TEXT[:100_000]])
    for name, transform in POLICIES.items():
        findings = train(transform, out / name, steps, corpus)
        run = gm.open_run(out / name)
        print(f"{name}: loss {np.mean(run.series('loss')[-20:]):.3f} (mean of the last 20 steps)")
        print(*findings or ["nothing found"], sep="\n")
        for kind, (share, factor) in clipped_by_kind(run).items():
            print(f"  {kind:12} scaled down in {share:4.0%} of the cases, by {factor:.3g} in the median")
        figures = {
            "clip": gm.plot.clip(run),
            "flow": gm.plot.gradient_flow(run),
            "loss": gm.plot.loss(run, findings=findings),
        }
        for figure, ax in figures.items():
            ax.figure.savefig(out / f"{figure}-{name}.png", dpi=80)


if __name__ == "__main__":
    main()
