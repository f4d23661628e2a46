"""GPT-like model from torch's own layers on the text of Python's help, plain SGD."""

import pydoc_data.topics

import torch
from common import options, report
from torch import Tensor, nn

args = options(("F32",))
T, B, D = 32, 24, 48

corpus = "\n".join(pydoc_data.topics.topics[key] for key in sorted(pydoc_data.topics.topics))
alphabet = sorted(set(corpus))
encoded = torch.tensor([alphabet.index(c) for c in corpus[:200_000]])
split = 180_000
encoded_train, encoded_valid = encoded[:split], encoded[split:]


class HelpGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(alphabet), D)
        self.position = nn.Parameter(torch.randn(T, D) * 0.5)
        self.layer = nn.TransformerEncoderLayer(D, 4, 4 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(D)
        self.out = nn.Linear(D, len(alphabet))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(T), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embed(ids) + self.position
        return self.out(self.norm(self.layer(hidden, src_mask=self.mask)))


def batches(data: Tensor, count: int) -> list[Tensor]:
    starts = torch.randint(len(data) - T - 1, (count, B))
    return [torch.stack([data[s : s + T + 1] for s in row]) for row in starts]


net = HelpGPT()
sgd = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
loss_fn = nn.CrossEntropyLoss()
stream = batches(encoded_train, args.steps or 220)
if args.fault == "F32" and len(stream) > 203:
    for bad in range(200, 204):
        stream[bad] = torch.full_like(stream[bad], alphabet.index("~"))

running = 0.0
for i, batch in enumerate(stream):
    sgd.zero_grad()
    logits = net(batch[:, :-1])
    loss = loss_fn(logits.flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    sgd.step()
    running = loss.item() if i == 0 else 0.95 * running + 0.05 * loss.item()
    if (i + 1) % 25 == 0:
        print(f"[{i + 1}] running loss {running:.3f}")

net.eval()
with torch.no_grad():
    losses = [loss_fn(net(b[:, :-1]).flatten(0, 1), b[:, 1:].flatten()) for b in batches(encoded_valid, 20)]
report(torch.stack(losses).mean(), higher_is_better=False)
