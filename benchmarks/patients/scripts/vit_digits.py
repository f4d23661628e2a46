"""Tiny vision transformer on the digits: eight 2x4 patches, average pooling."""

import torch
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits
from torch import nn


class ViT(nn.Module):
    def __init__(self, dim: int = 48, depth: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.patchify = nn.Conv2d(1, dim, kernel_size=(2, 4), stride=(2, 4))
        self.pos = nn.Parameter(0.02 * torch.randn(1, 8, dim))
        layer = nn.TransformerEncoderLayer(
            dim, heads, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patchify(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.encoder(tokens + self.pos)).mean(1))


def main() -> None:
    args = options()
    steps = args.steps or 350
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    x = (x - x.mean()) / x.std()
    y = torch.tensor(digits.target)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(5))
    train, val = order[:1437], order[1437:]
    model = ViT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.05, 1.0, total_iters=30)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, steps - 30))
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, decay], milestones=[30])
    for step in range(steps):
        model.train()
        idx = train[torch.randint(len(train), (64,))]
        loss = F.cross_entropy(model(x[idx]), y[idx])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.3f}")
    model.eval()
    with torch.no_grad():
        report((model(x[val]).argmax(1) == y[val]).float().mean().item(), higher_is_better=True)


if __name__ == "__main__":
    main()
