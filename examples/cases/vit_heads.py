"""A small vision transformer whose shallow heads do not learn: found head by head, and mended.

The shortcut around attention was forgotten: `x = attention(norm(x))`, not `x = x + …`. Shapes fit and nothing is
raised; the deeper a head stands below the loss, the less gradient reaches it.

    python examples/cases/vit_heads.py [--quick] [--out runs]
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import gradmedic as gm

TRAIN = 1437  # of 1797 handwritten digits, 8 x 8 pixels


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, places, width = x.shape
        q, k, v = self.qkv(x).view(batch, places, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, places, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, shortcut: bool) -> None:
        super().__init__()
        self.shortcut = shortcut
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.attention(self.norm1(x))
        x = x + mixed if self.shortcut else mixed  # without it: the mistake
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Digits [batch, 8, 8] as 16 patches of 2 x 2 pixels, to logits [batch, 10]."""

    def __init__(self, shortcut: bool, width: int = 32, heads: int = 4, depth: int = 6) -> None:
        super().__init__()
        self.patches = nn.Linear(4, width)
        self.places = nn.Parameter(0.02 * torch.randn(16, width))
        self.blocks = nn.ModuleList(Block(width, heads, shortcut) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = images.unflatten(2, (4, 2)).unflatten(1, (4, 2)).transpose(2, 3).reshape(-1, 16, 4)
        x = self.patches(x) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def train(shortcut: bool, record: Path, steps: int, batch: int) -> list[gm.Finding]:
    torch.manual_seed(0)
    digits = load_digits()
    images, labels = torch.tensor(digits.images, dtype=torch.float32) / 16, torch.tensor(digits.target)
    model = ViT(shortcut)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    with gm.watch(model, optimizer, record=record, overwrite=True, modules_every=20) as monitor:
        for _ in range(steps):
            rows = torch.randint(TRAIN, (batch,))
            loss = F.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        accuracy = (model(images[TRAIN:]).argmax(1) == labels[TRAIN:]).float().mean()
    print(f"{record.name}: loss {loss.item():.3f}, test accuracy {accuracy.item():.3f}")
    return monitor.diagnose()


def head_gradients(run: gm.Run) -> dict[str, list[float]]:
    """Return the gradient norm of each head by module, at the last sampled step."""
    rows = [row for row in run.modules.to_pylist() if row["what"] == "attention" and row["module"]]
    found = {}
    for row in rows:  # later steps replace earlier ones
        extra = dict(row["extra"])
        found[row["module"]] = [value for name, value in extra.items() if name.startswith("grad_norm.")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps: seconds")
    parser.add_argument(
        "--out", type=Path, default=Path("runs"), help="runs and pictures go to OUT/vit_heads, anew each time"
    )
    args = parser.parse_args()
    out = args.out / "vit_heads"
    steps, batch = (81, 16) if args.quick else (241, 64)
    for name, shortcut in (("forgotten", False), ("mended", True)):
        findings = train(shortcut, out / name, steps, batch)
        print(*findings or ["nothing found"], sep="\n")
        for module, norms in head_gradients(gm.open_run(out / name)).items():
            print(f"  {module:28}", *(f"{norm:.1e}" for norm in norms))
        figures = {
            "heads": gm.plot.heads(out / name),
            "flow": gm.plot.gradient_flow(out / name, layers="blocks.*.attention", steps=slice(-50, None)),
            "loss": gm.plot.loss(out / name, findings=findings),
        }
        for figure, ax in figures.items():
            ax.figure.savefig(out / f"{figure}-{name}.png", dpi=80)


if __name__ == "__main__":
    main()
