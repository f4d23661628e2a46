"""A classifier of handwritten digits that trains as it should."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

EPOCHS = 3


def main():
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(EPOCHS):
        for rows in torch.randperm(len(images)).split(64):
            loss = F.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        accuracy = (model(images).argmax(1) == labels).float().mean()
        print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {accuracy.item():.3f}")


if __name__ == "__main__":
    main()
