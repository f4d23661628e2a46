"""Fine-tuning in two phases: new head on a frozen backbone, then everything with a lower rate."""

import torch
import torch.nn as nn
from common import options, report
from sklearn.datasets import load_digits

args = options()
steps = args.steps or 360
images, digit = load_digits(return_X_y=True)
images = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8).div(16)
digit = torch.tensor(digit)
criterion = nn.CrossEntropyLoss()


class Classifier(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(128, num_classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(model, x, y, optimizer, n):
    model.train()
    for step in range(n):
        pick = torch.randint(len(x), (48,))
        optimizer.zero_grad()
        loss = criterion(model(x[pick]), y[pick])
        loss.backward()
        optimizer.step()
        if step % 40 == 0:
            print(f"  {step}: {loss.item():.4f}")


def split(mask, offset):
    x, y = images[mask], digit[mask] - offset
    cut = int(0.75 * len(x))
    return x[:cut], y[:cut], x[cut:], y[cut:]


x, y, _, _ = split(digit < 5, 0)
model = Classifier(5)
fit(model, x, y, torch.optim.Adam(model.parameters(), lr=3e-3), steps // 3)

x, y, x_val, y_val = split(digit >= 5, 5)
model.head = nn.Linear(128, 5)
print("phase 1: head only")
for p in model.backbone.parameters():
    p.requires_grad = False
fit(model, x, y, torch.optim.Adam(model.head.parameters(), lr=5e-3), steps // 3)

print("phase 2: everything")
for p in model.backbone.parameters():
    p.requires_grad = True
fit(model, x, y, torch.optim.Adam(model.parameters(), lr=5e-4), steps // 3)

model.eval()
with torch.no_grad():
    accuracy = (model(x_val).argmax(1) == y_val).float().mean().item()
report(accuracy, higher_is_better=True)
