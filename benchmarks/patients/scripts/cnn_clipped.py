"""CNN on shifted digits; SGD, step decay, gradient clipping."""

import torch
from common import options, report
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.utils import clip_grad_norm_

opt = options(("F27",))
CLIP = 1e-4 if opt.fault == "F27" else 5.0
STEPS = opt.steps or 350

raw = load_digits()
inputs = nn.functional.pad(torch.tensor(raw.images / 16, dtype=torch.float32), (1, 1, 1, 1)).unsqueeze(1)
targets = torch.tensor(raw.target)
shuffled = torch.randperm(len(targets))
train_ids, val_ids = shuffled[:1400], shuffled[1400:]


def augment(batch: torch.Tensor) -> torch.Tensor:
    left, right = batch.chunk(2)
    return torch.cat([torch.roll(left, -1, dims=3), right]) if torch.rand(()) < 0.5 else batch


cnn = nn.Sequential(
    nn.Conv2d(1, 16, 3),
    nn.LeakyReLU(0.1),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3),
    nn.LeakyReLU(0.1),
    nn.Flatten(),
    nn.Linear(32 * 4, 10),
)
criterion = nn.CrossEntropyLoss()
sgd = torch.optim.SGD(cnn.parameters(), lr=0.03, momentum=0.9)
scheduler = torch.optim.lr_scheduler.MultiStepLR(sgd, milestones=[220, 300], gamma=0.3)

for step in range(STEPS):
    ids = train_ids[torch.randint(len(train_ids), (64,))]
    sgd.zero_grad()
    loss = criterion(cnn(augment(inputs[ids])), targets[ids])
    loss.backward()
    clip_grad_norm_(cnn.parameters(), CLIP)
    sgd.step()
    scheduler.step()
    if step % 70 == 69:
        with torch.no_grad():
            val = criterion(cnn(inputs[val_ids]), targets[val_ids])
        print(f"{step + 1:4d} train {loss.item():.4f} val {val.item():.4f}")

with torch.no_grad():
    accuracy = (cnn(inputs[val_ids]).argmax(dim=1) == targets[val_ids]).float().mean()
report(accuracy, higher_is_better=True)
