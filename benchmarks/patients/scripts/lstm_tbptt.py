"""LSTM character model, truncated back-propagation through time over contiguous streams."""

from pydoc_data.topics import topics

import torch
from common import options, report
from torch import nn

args = options()
BPTT, BATCH = 40, 20

corpus = "".join(topics[k] for k in sorted(topics)).lower()[:300_000]
vocab = sorted(set(corpus))
ids = torch.tensor([vocab.index(c) for c in corpus])


def batchify(data: torch.Tensor, bsz: int) -> torch.Tensor:
    n = data.size(0) // bsz
    return data[: n * bsz].view(bsz, n).t().contiguous()


cut = int(0.95 * len(ids))
train_data, val_data = batchify(ids[:cut], BATCH), batchify(ids[cut:], BATCH)


class RNNModel(nn.Module):
    def __init__(self, ntoken: int, ninp: int = 48, nhid: int = 96) -> None:
        super().__init__()
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid)
        self.drop = nn.Dropout(0.1)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.encoder(x), hidden)
        return self.decoder(self.drop(out)), hidden


def repackage(hidden):
    return tuple(h.detach() for h in hidden)


model = RNNModel(len(vocab))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

hidden = None
position = 0
for step in range(args.steps or 330):
    model.train()
    if position + BPTT + 1 > len(train_data):
        position, hidden = 0, None
    x = train_data[position : position + BPTT]
    target = train_data[position + 1 : position + BPTT + 1]
    position += BPTT
    if hidden is not None:
        hidden = repackage(hidden)
    optimizer.zero_grad()
    output, hidden = model(x, hidden)
    loss = criterion(output.view(-1, len(vocab)), target.reshape(-1))
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    if step % 50 == 0:
        print(f"step {step} loss {loss.item():.3f}")

model.eval()
with torch.no_grad():
    output, _ = model(val_data[:-1], None)
    val_loss = criterion(output.view(-1, len(vocab)), val_data[1:].reshape(-1)).item()
print("val", val_loss)
report(val_loss, higher_is_better=False)
