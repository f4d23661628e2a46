"""Two-layer transformer as in the original paper (post-LN), characters of Python's help."""

import math
import pydoc_data.topics as help_topics

import torch
import torch.nn as nn
from common import options, report

BLOCK_SIZE = 32
D_MODEL = 64
BATCH = 20


class PositionalEncoding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        position = torch.arange(BLOCK_SIZE).unsqueeze(1)
        frequency = torch.exp(torch.arange(0, D_MODEL, 2) * (-math.log(10000.0) / D_MODEL))
        pe = torch.zeros(BLOCK_SIZE, D_MODEL)
        pe[:, 0::2] = torch.sin(position * frequency)
        pe[:, 1::2] = torch.cos(position * frequency)
        self.register_buffer("pe", pe)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.pe[: x.size(1)]


class TransformerLM(nn.Module):
    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, D_MODEL)
        self.positional = PositionalEncoding()
        layer = nn.TransformerEncoderLayer(D_MODEL, nhead=4, dim_feedforward=128, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.decoder = nn.Linear(D_MODEL, vocab_size)

    def forward(self, src: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(src.size(1))
        return self.decoder(self.encoder(self.positional(self.embedding(src)), mask=mask, is_causal=True))


def get_batch(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ix = torch.randint(len(data) - BLOCK_SIZE - 1, (BATCH,))
    x = torch.stack([data[i : i + BLOCK_SIZE] for i in ix])
    y = torch.stack([data[i + 1 : i + BLOCK_SIZE + 1] for i in ix])
    return x, y


@torch.no_grad()
def estimate_loss(model: nn.Module, criterion: nn.Module, data: torch.Tensor) -> float:
    model.eval()
    losses = []
    for _ in range(15):
        x, y = get_batch(data)
        losses.append(criterion(model(x).transpose(1, 2), y).item())
    model.train()
    return sum(losses) / len(losses)


def main() -> None:
    args = options(("F29",))
    text = "".join(help_topics.topics.values())
    stoi = {ch: i for i, ch in enumerate(sorted(set(text)))}
    data = torch.tensor([stoi[ch] for ch in text], dtype=torch.long)
    train_data, val_data = data[:400_000], data[400_000:]

    model = TransformerLM(len(stoi))
    criterion = nn.CrossEntropyLoss()
    optimizer: torch.optim.Optimizer
    if args.fault == "F29":
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-2)
        warmup = 1
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        warmup = 40
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / warmup))

    for step in range(args.steps or 300):
        x, y = get_batch(train_data)
        loss = criterion(model(x).transpose(1, 2), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if step % 100 == 99:
            print(f"step {step + 1}: train {loss.item():.3f}, val {estimate_loss(model, criterion, val_data):.3f}")
    report(estimate_loss(model, criterion, val_data), False)


if __name__ == "__main__":
    main()
