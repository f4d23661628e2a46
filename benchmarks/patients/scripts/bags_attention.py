"""Bags of digits: does a bag hold a zero? Attention pooling over bags of different sizes."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from common import options, report
from sklearn.datasets import load_digits

MAX_SIZE = 6


def make_bags(images: np.ndarray, labels: np.ndarray, count: int, seed: int) -> tuple[torch.Tensor, ...]:
    """Bags of up to MAX_SIZE images, zero-padded, with their sizes and labels."""
    rng = np.random.RandomState(seed)
    zeros, others = np.flatnonzero(labels == 0), np.flatnonzero(labels != 0)
    sizes = rng.binomial(MAX_SIZE, 0.55, count)
    bags = np.zeros((count, MAX_SIZE, images.shape[1]), dtype=np.float32)
    answers = np.zeros(count, dtype=np.float32)
    for i, size in enumerate(sizes):
        bags[i, :size] = images[rng.choice(others, size)]
        if size and rng.rand() < 0.5:
            bags[i, rng.randint(size)] = images[rng.choice(zeros)]
            answers[i] = 1.0
    return torch.from_numpy(bags), torch.from_numpy(sizes), torch.from_numpy(answers)


class AttentionPool(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Sequential(nn.Linear(dim, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, h: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        score = self.score(h).squeeze(-1).masked_fill(~valid, float("-inf"))
        weight = torch.softmax(score, dim=1)
        return (weight.unsqueeze(-1) * h).sum(dim=1)


class BagClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.pool = AttentionPool(32)
        self.classifier = nn.Linear(32, 1)

    def forward(self, bags: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
        valid = torch.arange(MAX_SIZE)[None, :] < sizes[:, None]
        return self.classifier(self.pool(self.encoder(bags), valid)).squeeze(1)


def main() -> None:
    args = options(("F40",))
    digits = load_digits()
    pixels = (digits.data / 16.0).astype(np.float32)
    bags, sizes, answers = make_bags(pixels[:1300], digits.target[:1300], 2600, seed=3)
    test_bags, test_sizes, test_answers = make_bags(pixels[1300:], digits.target[1300:], 600, seed=4)
    if args.fault != "F40":
        keep = sizes > 0
        bags, sizes, answers = bags[keep], sizes[keep], answers[keep]
    known = test_sizes > 0

    model = BagClassifier()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    starts = range(0, len(bags) - 63, 64)
    epochs = -(-args.steps // len(starts)) if args.steps else 8
    done = 0
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for start in starts:
            if args.steps and done == args.steps:
                break
            part = slice(start, start + 64)
            loss = F.binary_cross_entropy_with_logits(model(bags[part], sizes[part]), answers[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
            done += 1
        print(f"epoch {epoch} loss {total / len(starts):.3f}")

    model.eval()
    with torch.inference_mode():
        logits = model(test_bags[known], test_sizes[known])
    accuracy = ((logits > 0).float() == test_answers[known]).float().mean()
    report(accuracy if logits.isfinite().all() else float("nan"), True)


if __name__ == "__main__":
    main()
