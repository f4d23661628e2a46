"""Makes the pictures of docs/gallery.md: `python docs/make_gallery.py` (two minutes; needs gradmedic[plot]).

The runs are those of `gradmedic demo`: a small transformer on Python's own manual, with a learning rate and initial
weights that are too large, and the same one treated; for the time axis a recurrent net whose gradient vanishes, and
one whose recurrent weight is orthogonal.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch
from matplotlib import pyplot
from torch import nn

import gradmedic as gm
from gradmedic import plot
from gradmedic.cli.demo.training import SICK, TREATED, train

PICTURES = Path(__file__).parent / "images" / "gallery"
STEPS = 120


def main() -> None:
    """Train both, and draw every figure of both."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name, recipe in (("sick", SICK), ("treated", TREATED)):
            train(recipe, Path(folder) / name, STEPS, lambda done, loss: None)
            draw(gm.open_run(Path(folder) / name), name)
        for name, gain in (("sick", 0.7), ("treated", 1.0)):
            read_sequences(Path(folder) / f"rnn-{name}", gain)
            ax = plot.through_time(gm.open_run(Path(folder) / f"rnn-{name}"))
            ax.figure.savefig(PICTURES / f"through_time-{name}.png", dpi=80)
            pyplot.close("all")


def draw(run: gm.Run, name: str) -> None:
    """Draw every figure of one run."""
    findings = gm.diagnose(run)
    figures = {
        "loss": plot.loss(run, findings=findings),
        "gradient_flow": plot.gradient_flow(run),
        "evolution": plot.evolution(run, findings=findings),
        "layer_distribution": plot.layer_distribution(run, layers=["tokens", "blocks.*", "head"]),
        "heatmap": plot.heatmap(run),
        "clip": plot.clip(run),
        "heads": plot.heads(run),
        "overview": plot.overview(run, findings=findings)["loss"],
    }
    for figure, ax in figures.items():
        ax.figure.savefig(PICTURES / f"{figure}-{name}.png", dpi=80)
    plot.flow_animation(run, PICTURES / f"flow_animation-{name}.gif", at_most=10, travel=4, fps=8)
    pyplot.close("all")


class Reader(nn.Module):
    """Tells whether the first number of a sequence was positive; its recurrent weight is orthogonal times `gain`."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.read, self.rnn, self.tell = nn.Linear(1, 24), nn.RNN(24, 24), nn.Linear(24, 1)
        nn.init.orthogonal_(self.rnn.weight_hh_l0, gain)
        for started in (self.read.weight, self.rnn.weight_ih_l0):  # small: where tanh is straight it shrinks nothing
            nn.init.normal_(started, std=0.05)
        for bias in (self.read.bias, self.rnn.bias_ih_l0, self.rnn.bias_hh_l0):
            nn.init.zeros_(bias)

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        """Return a logit for each sequence [T, B, 1]."""
        told: torch.Tensor = self.tell(self.rnn(self.read(numbers))[0][-1])
        return told


def read_sequences(record: Path, gain: float) -> None:
    """Train the reader on sequences of 60 numbers."""
    torch.manual_seed(0)
    model = Reader(gain)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with gm.watch(model, optimizer, record=record):
        for _ in range(STEPS):
            numbers = torch.randn(60, 64, 1)
            loss = nn.functional.binary_cross_entropy_with_logits(model(numbers), (numbers[0] > 0).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
