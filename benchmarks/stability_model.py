"""The patient: a post-norm transformer of 12 layers, and many copies of it computed side by side.

At this size a step is all launch overhead: sixteen copies in one stack cost little more than one. Each copy has its own
weights, gradients, clipper and optimizer; no number passes from one to another.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Shape:
    """Sizes of the model, with one attention head.

    Args:
        features: of an input token.
        causal: predict at every token, from it and those before it; otherwise once, from the mean of all tokens.
        position: standard deviation of the first position embedding.
    """

    features: int
    tokens: int
    classes: int
    causal: bool
    position: float
    width: int = 16
    hidden: int = 32
    layers: int = 12


class PostNorm(nn.Module):
    """The model of one run, of torch's own layers: post-norm, no dropout, no biases but the head's."""

    def __init__(self, shape: Shape, prior: torch.Tensor | None = None) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Linear(shape.features, shape.width, bias=False)
        self.position = nn.Parameter(torch.randn(shape.tokens, shape.width) * shape.position)
        layer = (shape.width, 1, shape.hidden)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(*layer, dropout=0.0, batch_first=True, norm_first=False, bias=False)
            for _ in range(shape.layers)
        )
        self.head = nn.Linear(shape.width, shape.classes)
        if prior is not None:
            self.head.bias.data = prior.log()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs [B, T, features] to logits: [B, T, classes] if causal, else [B, classes]."""
        tokens = self.shape.tokens
        mask = nn.Transformer.generate_square_subsequent_mask(tokens) if self.shape.causal else None
        x = self.embed(inputs) + self.position
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=self.shape.causal)
        logits: torch.Tensor = self.head(x if self.shape.causal else x.mean(1))
        return logits


class Stack:
    """Copies of one model, computed together.

    `weights` holds each parameter of all copies, [S, ...]. `models[s]` is copy s as a module: its parameters are views
    of row s, so that what an optimizer does to them happens here.

    Args:
        model: where all copies begin.
        copies: how many, S.
    """

    def __init__(self, model: PostNorm, copies: int) -> None:
        self.shape = model.shape
        named = {name: p.detach() for name, p in model.named_parameters()}
        self.weights = {n: p.expand(copies, *p.shape).clone().requires_grad_() for n, p in named.items()}
        ahead = torch.full((self.shape.tokens, self.shape.tokens), -torch.inf).triu(1)
        self._mask = ahead if self.shape.causal else torch.zeros_like(ahead)
        self.models = [self._view(at) for at in range(copies)]
        self._rows = [[(p, self.weights[n]) for n, p in model.named_parameters()] for model in self.models]

    def _view(self, at: int) -> PostNorm:
        with torch.random.fork_rng(devices=[]):
            view = PostNorm(self.shape)
        for name, parameter in view.named_parameters():
            parameter.data = self.weights[name].detach()[at]
        return view

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs [S or 1, B, T, features] to logits [S, B, T or 1, classes]."""
        w, shape = self.weights, self.shape
        copies, batch, tokens = len(self.models), inputs.shape[1], shape.tokens
        flat = (copies, batch * tokens, shape.width)
        x = inputs.flatten(1, 2) @ w["embed.weight"].mT
        x = (x.view(copies, batch, tokens, -1) + w["position"][:, None]).view(flat)
        for at in range(shape.layers):
            name = f"layers.{at}."
            x = _normed(x + self._attention(x, name), w[name + "norm1.weight"])
            hidden = torch.relu(x @ w[name + "linear1.weight"].mT)
            x = _normed(x + hidden @ w[name + "linear2.weight"].mT, w[name + "norm2.weight"])
        if not shape.causal:
            x = x.view(copies, batch, tokens, -1).mean(2)
        x = x @ w["head.weight"].mT + w["head.bias"][:, None]
        return x.view(copies, batch, -1, shape.classes)

    def _attention(self, x: torch.Tensor, name: str) -> torch.Tensor:
        shape, w = self.shape, self.weights
        copies = x.shape[0]
        qkv = x @ w[name + "self_attn.in_proj_weight"].mT
        q, k, v = qkv.view(-1, shape.tokens, 3 * shape.width).chunk(3, -1)
        scores = torch.baddbmm(self._mask, q, k.mT, alpha=shape.width**-0.5)
        mixed = (scores.softmax(-1) @ v).view(copies, -1, shape.width)
        return mixed @ w[name + "self_attn.out_proj.weight"].mT

    def backward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Hand each copy the gradient of its own loss, and return the losses [S].

        Targets are [B, T or 1]. The cross-entropy is summed over the tokens of an example and averaged over examples.
        """
        for weight in self.weights.values():
            weight.grad = None
        logits = self.logits(inputs)
        labels = targets.expand(len(self.models), *targets.shape)
        each = F.cross_entropy(logits.flatten(0, 2), labels.reshape(-1), reduction="none")
        losses = each.view(len(self.models), *targets.shape).sum(2).mean(1)
        losses.sum().backward()  # type: ignore[no-untyped-call]
        for at, rows in enumerate(self._rows):
            for parameter, weight in rows:
                assert weight.grad is not None
                parameter.grad = weight.grad[at]
        return losses.detach()

    @torch.no_grad()
    def accuracy(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return each copy's share of right predictions, [S]; a copy whose weights are not finite has 0."""
        logits = self.logits(inputs[None])
        right = (logits.argmax(-1) == targets).double().mean((1, 2))
        return torch.where(torch.isfinite(logits).flatten(1).all(1), right, torch.zeros_like(right))


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, x.shape[-1:]) * weight[:, None]
