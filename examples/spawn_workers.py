"""Data is loaded by worker processes that are started afresh (spawn): they import this file, and do not train."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset):
    def __init__(self):
        digits = load_digits()
        self.images = torch.tensor(digits.data, dtype=torch.float32) / 16
        self.labels = torch.tensor(digits.target)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        return self.images[row], self.labels[row]


def main():
    torch.manual_seed(0)
    loader = DataLoader(Digits(), batch_size=64, shuffle=True, num_workers=1, multiprocessing_context="spawn")
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
