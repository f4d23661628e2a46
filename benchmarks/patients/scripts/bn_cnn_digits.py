"""CNN with batch norm on digits."""

import numpy as np
import torch
from common import options, report
from sklearn.datasets import load_digits
from sklearn.utils import shuffle
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

args = options(("F43", "F44", "F46", "F46b"))


def conv_block(c_in: int, c_out: int) -> list[nn.Module]:
    return [nn.Conv2d(c_in, c_out, 3, padding=1), nn.MaxPool2d(2), nn.BatchNorm2d(c_out), nn.ReLU()]


digits = load_digits()
images = digits.images[:, None].astype(np.float32) / 16
images, labels = shuffle(images, digits.target, random_state=0)
train_images, test_images = images[:1440], images[1440:]
train_labels, test_labels = labels[:1440], labels[1440:]
if args.fault == "F43":
    train_images = shuffle(train_images, random_state=1)
if args.fault == "F44":
    by_label = np.argsort(train_labels, kind="stable")
    train_images, train_labels = train_images[by_label], train_labels[by_label]

train_loader = DataLoader(
    TensorDataset(torch.tensor(train_images), torch.tensor(train_labels)),
    batch_size=2 if args.fault == "F46b" else 60,
    shuffle=args.fault != "F44",
)
test_x, test_y = torch.tensor(test_images), torch.tensor(test_labels)

model = nn.Sequential(
    *conv_block(1, 8), *conv_block(8, 16), *conv_block(16, 32), nn.Flatten(), nn.Dropout(0.1), nn.Linear(32, 10)
)
criterion = nn.CrossEntropyLoss()
optimizer = optim.SGD(model.parameters(), lr=0.005 if args.fault == "F46b" else 0.05, momentum=0.9)


def accuracy() -> float:
    model.eval()
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).float().mean().item()


num_steps = args.steps or 192
step = 0
model.train()
while step < num_steps:
    if args.fault != "F46":
        model.train()
    for inputs, targets in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(inputs), targets)
        loss.backward()
        optimizer.step()
        step += 1
        if step == num_steps:
            break
    print(f"after {step} steps: test accuracy {accuracy():.3f}")
report(accuracy(), True)
