"""Logistic regression whose weights are updated by hand, without an optimizer."""

import torch
from sklearn.datasets import load_breast_cancer
from torch.nn import functional as F

torch.manual_seed(0)
data = load_breast_cancer()
features = torch.tensor(data.data, dtype=torch.float32)
features = (features - features.mean(0)) / features.std(0)
targets = torch.tensor(data.target, dtype=torch.float32)
weight = torch.zeros(30, requires_grad=True)
bias = torch.zeros(1, requires_grad=True)
for _ in range(60):
    loss = F.binary_cross_entropy_with_logits(features @ weight + bias, targets)
    loss.backward()
    with torch.no_grad():
        weight -= 0.5 * weight.grad
        bias.data -= 0.5 * bias.grad
    weight.grad = bias.grad = None
print(f"loss {loss.item():.4f}")
