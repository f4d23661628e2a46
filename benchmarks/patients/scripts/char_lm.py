"""A small pre-LN character transformer on Python's own help texts."""

import math
import pydoc_data.topics

import torch
import torch.nn as nn
import torch.nn.functional as F
from common import options, report

args = options(("F26", "F30", "F31", "F32"))
CONTEXT, WIDTH, HEADS, LAYERS = 32, 48, 4, 2


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)
        self.causal = args.fault != "F31"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (part.view(b, t, HEADS, c // HEADS).transpose(1, 2) for part in self.qkv(x).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.proj(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.ln2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class CharLM(nn.Module):
    def __init__(self, vocab: int) -> None:
        super().__init__()
        self.tok = nn.Embedding(vocab, WIDTH)
        self.pos = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocab, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln_f(x))


def init_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        module.weight = nn.Parameter(torch.randn_like(module.weight) / WIDTH**0.5)
    if isinstance(module, nn.Linear) and module.bias is not None:
        module.bias = nn.Parameter(torch.zeros_like(module.bias))


def learning_rate(step: int, total: int, peak: float, warmup: int = 30) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup))))


def sample(data: torch.Tensor, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    start = torch.randint(0, len(data) - CONTEXT - 1, (batch,))
    windows = data[start[:, None] + torch.arange(CONTEXT + 1)]
    return windows[:, :-1], windows[:, 1:]


@torch.no_grad()
def next_char_loss(model: nn.Module, data: torch.Tensor) -> float:
    """Loss of the character after a whole window, as in generation."""
    model.eval()
    total = 0.0
    for _ in range(8):
        x, y = sample(data, 256)
        total += F.cross_entropy(model(x)[:, -1], y[:, -1]).item()
    return total / 8


text = "".join(pydoc_data.topics.topics.values())
chars = sorted(set(text))
index = {c: i for i, c in enumerate(chars)}
ids = torch.tensor([index[c] for c in text])
train, valid = ids[: int(0.9 * len(ids))], ids[int(0.9 * len(ids)) :]

steps = args.steps or (240 if args.fault == "F32" else 300)
model = CharLM(len(chars))
if args.fault != "F26":
    model.apply(init_weights)
peak = 1e-2 if args.fault == "F30" else 6e-3
optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.1)
if args.fault == "F26":
    model.apply(init_weights)
if args.fault == "F30":
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[: 2 * WIDTH] *= 30.0

model.train()
for step in range(steps):
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(step, 300, peak)
    x, y = sample(train, 24)
    if args.fault == "F32" and 200 <= step < 205:
        x = torch.full_like(x, index["~"])
        y = x
    logits = model(x)
    loss = F.cross_entropy(logits.view(-1, len(chars)), y.reshape(-1))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step:4d} loss {loss.item():.3f} lr {optimizer.param_groups[0]['lr']:.1e}")

result = next_char_loss(model, valid)
print(f"validation loss {result:.3f}")
report(result, False)
