"""Character model that is first trained on the alphabet and then goes on with prose (AdamW)."""

import pydoc_data.topics
import string

import torch
from common import options, report
from torch import nn

args = options(("F33",))
SEQ = 32
SWITCH = 150

help_text = "".join(pydoc_data.topics.topics.values())
letters = string.ascii_letters * 200
vocab = sorted(set(help_text + letters))
lookup = {c: i for i, c in enumerate(vocab)}


def encode(text: str) -> torch.Tensor:
    return torch.tensor([lookup[c] for c in text])


alphabet, prose = encode(letters), encode(help_text)
prose, prose_valid = prose[:400_000], prose[400_000:]


class Model(nn.Module):
    """Two transformer layers between an embedding and a linear output."""

    def __init__(self, dim: int = 48) -> None:
        super().__init__()
        self.emb = nn.Embedding(len(vocab), dim)
        self.pos = nn.Embedding(SEQ, dim)
        self.lower = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.upper = nn.TransformerEncoderLayer(dim, 4, 2 * dim, dropout=0.0, batch_first=True)
        self.out = nn.Linear(dim, len(vocab))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mask = torch.full((ids.shape[1], ids.shape[1]), float("-inf")).triu(1)
        x = self.emb(ids) + self.pos.weight[: ids.shape[1]]
        return self.out(self.upper(self.lower(x, src_mask=mask), src_mask=mask))


def batch_of(data: torch.Tensor, size: int = 16) -> torch.Tensor:
    return torch.stack([data[int(i) : int(i) + SEQ + 1] for i in torch.randint(len(data) - SEQ - 1, (size,))])


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])
    return nn.functional.cross_entropy(logits.reshape(-1, len(vocab)), batch[:, 1:].reshape(-1))


model = Model()
beta2 = 0.999 if args.fault == "F33" else 0.95
optimizer = torch.optim.AdamW(model.parameters(), lr=6e-3, betas=(0.9, beta2))
total = args.steps or 400
for step in range(total):
    loss = loss_of(model, batch_of(alphabet if step < SWITCH else prose))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 30 == 0 or step == SWITCH:
        print(f"{step:4d} {loss.item():.4f}")

with torch.no_grad():
    valid = torch.stack([loss_of(model, batch_of(prose_valid, 64)) for _ in range(6)]).mean()
report(valid, False)
