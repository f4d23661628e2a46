"""Makes the pictures of docs/gallery.md: `python docs/make_gallery.py` (two minutes; needs gradmedic[plot]).

The runs are those of `gradmedic demo`: a small transformer on Python's own manual, with a learning rate and initial
weights that are too large, and the same one treated.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot

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
        "overview": plot.overview(run, findings=findings)["loss"],
    }
    for figure, ax in figures.items():
        ax.figure.savefig(PICTURES / f"{figure}-{name}.png", dpi=80)
    plot.flow_animation(run, PICTURES / f"flow_animation-{name}.gif", at_most=10, travel=4, fps=8)
    pyplot.close("all")


if __name__ == "__main__":
    main()
