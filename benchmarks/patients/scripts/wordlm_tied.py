"""Word language model with input and output embeddings tied, AdamW with weight decay on everything."""

import re
from collections import Counter
from pydoc_data.topics import topics

import torch
from common import options, report
from torch import nn

SEQ, BATCH, VOCAB, D_MODEL = 32, 16, 600, 64


class TiedTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, D_MODEL)
        self.position = nn.Parameter(0.02 * torch.randn(SEQ, D_MODEL))
        layer = nn.TransformerEncoderLayer(
            D_MODEL, nhead=4, dim_feedforward=128, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(
            layer, num_layers=2, norm=nn.LayerNorm(D_MODEL), enable_nested_tensor=False
        )
        self.decoder = nn.Linear(D_MODEL, VOCAB)
        self.decoder.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.05)
        nn.init.zeros_(self.decoder.bias)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(SEQ))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(tokens) * D_MODEL**0.5 + self.position
        return self.decoder(self.encoder(hidden, mask=self.mask, is_causal=True))


def load_tokens() -> torch.Tensor:
    words = re.findall(r"\w+|[^\w\s]", "\n".join(topics[k] for k in sorted(topics)).lower())
    common = [w for w, _ in Counter(words).most_common(VOCAB - 1)]
    index = {w: i + 1 for i, w in enumerate(common)}  # 0 is <unk>
    return torch.tensor([index.get(w, 0) for w in words])


def windows(tokens: torch.Tensor) -> torch.Tensor:
    count = len(tokens) // (SEQ + 1)
    return tokens[: count * (SEQ + 1)].view(count, SEQ + 1)


def evaluate(model: nn.Module, data: torch.Tensor, criterion: nn.Module) -> float:
    model.eval()
    with torch.no_grad():
        logits = model(data[:, :-1])
        return criterion(logits.reshape(-1, VOCAB), data[:, 1:].reshape(-1)).item()


def main() -> None:
    args = options()
    steps = args.steps or 230
    data = windows(load_tokens())
    data = data[torch.randperm(len(data), generator=torch.Generator().manual_seed(7))]
    valid, train = data[:128], data[128:]
    model = TiedTransformer()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 30))
    print("valid loss before training", evaluate(model, valid, criterion))
    for step in range(steps):
        model.train()
        batch = train[torch.randint(len(train), (BATCH,))]
        logits = model(batch[:, :-1])
        loss = criterion(logits.reshape(-1, VOCAB), batch[:, 1:].reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        if (step + 1) % 100 == 0:
            print(step + 1, loss.item(), evaluate(model, valid, criterion))
    report(evaluate(model, valid, criterion), higher_is_better=False)


if __name__ == "__main__":
    main()
