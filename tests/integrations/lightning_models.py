"""Lightning modules of the trainings of `plain_loops`."""

from __future__ import annotations

import logging
import warnings

import lightning.pytorch as pl
import torch
from plain_loops import cross_entropy, make_net
from torch import nn

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
}


class Classifier(pl.LightningModule):
    def __init__(self, fails_at=None, poisoned_at=None):
        super().__init__()
        self.net = make_net()
        self.fails_at, self.poisoned_at = fails_at, poisoned_at

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, at):
        if at == self.fails_at:
            raise ArithmeticError("sick")
        loss = cross_entropy(self, batch)
        return loss * float("inf") if at == self.poisoned_at else loss

    def validation_step(self, batch, at):
        self.log("val_loss", cross_entropy(self, batch))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


class Adversaries(pl.LightningModule):
    """Two optimizers in manual optimization; the second also clips."""

    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(0)
        self.generator, self.critic = nn.Linear(2, 4), nn.Linear(4, 1)

    def losses(self, batch):
        yield self.critic(self.generator(batch[0][:, :2])).mean()
        yield (1 - self.critic(batch[0])).square().mean()

    def training_step(self, batch, at):
        for place, (optimizer, loss) in enumerate(zip(self.optimizers(), self.losses(batch), strict=True)):
            optimizer.zero_grad()
            self.manual_backward(loss)
            if place == 1:
                self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
            optimizer.step()

    def configure_optimizers(self):
        parts = self.generator, self.critic
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in parts]


def fit(model, callbacks, data, validate=None, ckpt_path=None, **options):
    trainer = pl.Trainer(**{**QUIET, "max_epochs": 1, **options}, callbacks=list(callbacks))
    trainer.fit(model, data, validate, ckpt_path=ckpt_path)
    return trainer
