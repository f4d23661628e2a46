"""Small trainings that are looked at by the graph probe, as a monitor would do it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from diagnosis_frames import FakeRun, Recorder, facts_event, facts_of
from torch import nn

from gradmedic.facts import InputFact, LossFact
from gradmedic.probes.graph_samples import GraphProbe
from gradmedic.probes.inputs import sample_inputs

Batches = Callable[[int], tuple[torch.Tensor, torch.Tensor]]
Criterion = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _raise(_part: str, error: Exception) -> None:
    raise error


def train_probed(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Batches,
    criterion: Criterion,
    steps: int = 160,
    every: int = 20,
    before_step: Callable[[int], None] = lambda step: None,
) -> FakeRun:
    """The usual loop; the graph is sampled every so many steps, and described in the first three."""
    torch.set_num_threads(1)
    names = {id(p): (name, name.rpartition(".")[0]) for name, p in model.named_parameters()}
    probe = GraphProbe(lambda tensor: names.get(id(tensor)), _raise)
    recorder = Recorder(model, optimizer)
    losses: list[LossFact] = []
    inputs: list[InputFact] = []
    for step in range(steps):
        optimizer.zero_grad()
        x, y = batches(step)
        loss = criterion(model(x), y)
        rows = probe.sample([loss]) if step % every == 0 else []
        if step < 3:
            losses += probe.loss_facts([loss], step)
            inputs += [sample.fact(sample.values.numpy()) for sample in sample_inputs((x,), {}, step)]
            facts = facts_of(recorder.models, recorder.optimizers)
            facts.losses, facts.inputs = list(losses), list(inputs)
            recorder.run.events.append(facts_event(facts, time=step + 0.5))
        loss.backward()
        before_step(step)
        recorder.step(loss.detach(), modules=packed(rows))
    return recorder.run


def packed(rows: list) -> tuple[dict, ...]:
    """Rows as a frame holds them."""
    tensors: list[torch.Tensor | None] = []

    def add(tensor: torch.Tensor | None) -> int:
        tensors.append(tensor)
        return len(tensors) - 1

    return tuple(row() for row in [sample.pack(add, lambda place: tensors[place].numpy()) for sample in rows])
