"""A recurrent net that must remember its first input: the gradient by time step, vanishing, exploding, and mended.

Each sequence carries its class in the first of 60 inputs, noise follows, and the loss looks at the last state. What
reaches the first time step decides whether anything can be learned.

    python examples/cases/rnn_through_time.py [--quick] [--out runs]
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gradmedic as gm

CLASSES, LENGTH, WIDTH = 4, 60, 48


class Recall(nn.Module):
    """Sequences [time, batch, CLASSES] to logits [batch, CLASSES]."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.rnn = nn.RNN(CLASSES, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        nn.init.orthogonal_(self.rnn.weight_hh_l0, gain=gain)  # how much of a state is left after each time step

    def forward(self, sequences: Tensor) -> Tensor:
        return self.head(self.rnn(sequences)[0][-1])


def batch() -> tuple[Tensor, Tensor]:
    labels = torch.randint(CLASSES, (32,))
    sequences = 0.1 * torch.randn(LENGTH, 32, CLASSES)
    sequences[0] += F.one_hot(labels, CLASSES)
    return sequences, labels


def train(gain: float, record: Path, steps: int) -> list[gm.Finding]:
    torch.manual_seed(0)
    model = Recall(gain)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    right = 0.0
    with gm.watch(model, optimizer, record=record, overwrite=True, modules_every=20) as monitor:
        for step in range(steps):
            sequences, labels = batch()
            logits = model(sequences)
            loss = F.cross_entropy(logits, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step >= steps - 20:
                right += (logits.argmax(1) == labels).float().mean().item() / 20
    print(f"{record.name} (gain {gain}): loss {loss.item():.3f}, accuracy {right:.3f} (by chance {1 / CLASSES})")
    return monitor.diagnose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps: seconds")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="runs and pictures go to OUT/rnn_through_time, anew each time"
    )
    args = parser.parse_args()
    out = args.out / "rnn_through_time"
    steps = 121 if args.quick else 401
    for name, gain in (("vanishing", 0.6), ("exploding", 2.0), ("mended", 1.0)):
        findings = train(gain, out / name, steps)
        print(*findings or ["nothing found"], sep="\n")
        figures = {
            "time": gm.plot.through_time(out / name),
            "loss": gm.plot.loss(out / name, findings=findings),
        }
        for figure, ax in figures.items():
            ax.figure.savefig(out / f"{figure}-{name}.png", dpi=80)


if __name__ == "__main__":
    main()
