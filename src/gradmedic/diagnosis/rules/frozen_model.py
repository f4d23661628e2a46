"""GM104 frozen-model: nearly everything is frozen and the rest cannot learn, or nothing is trainable at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.diagnosis.layout import is_embedding, is_norm, template
from gradmedic.diagnosis.view import View
from gradmedic.facts import ParameterFact
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """When freezing is more than a choice."""

    frozen_share: float = 0.9
    """Share of elements that are frozen (rules.md)."""
    idle_steps: int = 3
    """Steps of an optimizer that holds nothing that takes gradients."""
    steps: int = 100
    """Steps without a falling loss, before a frozen model is blamed for it."""
    unlearned: float = 0.5
    """Part of its first loss that a model still has: tuning only biases or norms of a pretrained model begins low or
    falls soon; of random weights it learns little (an untrained network's features are all that it has)."""


class FrozenModel:
    """Freezing that went too far. Adapters and heads on a frozen backbone train matrices, and are left alone."""

    code = "GM104"
    name = "frozen-model"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at step 3, every 50 steps, and at the end."""
        steps = view.history.steps
        if view.facts is None or not (view.final or steps == 3 or steps % 50 == 0):
            return
        if self._idle(view):
            yield self._idle_draft(view)
            return
        facts = view.facts.parameters.values()
        total = sum(fact.numel for fact in facts)
        frozen = [fact for fact in facts if not fact.trainable]
        share = sum(fact.numel for fact in frozen) / total if total else 0.0
        if len(frozen) == len(view.facts.parameters) and frozen:
            yield self._draft("critical", 0.95, share, frozen, "all")
        elif share > self.thresholds.frozen_share and self._starved(view):
            losses = {"loss_first": view.loss.first, "loss_recent": view.loss.recent}
            yield self._draft("warning", 0.6, share, frozen, "starved", losses)
        between = _frozen_between(tuple(facts))
        if between:
            yield self._draft("warning", 0.6, share, between, "between")
        owned = [fact for fact in frozen if self._idles(fact, view)]
        if owned and len(owned) < len(view.facts.parameters):
            yield self._draft("info", 0.9, share, owned, "owned")

    def holds(self, finding: Finding, view: View) -> bool:
        """Take it back when an optimizer that had nothing to train has had a gradient after all."""
        if finding.variant == "starved":
            return view.history.steps % 50 != 0 or self._starved(view)
        if finding.variant != "idle" or finding.optimizer != view.frame.optimizer:
            return True
        return self._idle(view)

    def _idles(self, fact: ParameterFact, view: View) -> bool:
        """Whether the optimizer that steps now holds a frozen parameter that it has never had a gradient of.

        A critic is frozen while its generator steps, and the optimizer of an earlier phase may have trained it.
        """
        place = view.history.index.get(fact.name)
        seen = place is not None and bool(view.history.counters.seen[place])
        return fact.optimizer == view.frame.optimizer and not seen and not view.final

    def _idle(self, view: View) -> bool:
        """Whether an optimizer holds tensors of which none takes gradients: they are no rows of its tables at all.

        A watched process knows nothing else of such a model, since models are found by the parameters that train.
        """
        assert view.facts is not None
        history, name = view.history, view.frame.optimizer
        if history.steps < self.thresholds.idle_steps or history.tables or history.empty_steps or history.hidden_steps:
            return False
        if view.facts.engine or any(entry.get("optimizer") == name for entry in view.facts.stale):
            return False
        if any(fact.optimizer == name for fact in view.facts.parameters.values()):
            return False
        held = view.facts.optimizers.get(name, {}).get("tensors")
        return bool(held) and bool(np.isnan(view.window("grad_norm", history.steps)).all())

    def _idle_draft(self, view: View) -> Draft:
        assert view.facts is not None
        held = int(view.facts.optimizers[view.frame.optimizer]["tensors"])
        return Draft(
            severity="critical" if len(view.histories) == 1 else "error",
            confidence=0.9,
            step=0,
            evidence=(
                Evidence("tensors in the optimizer that take gradients", 0, 1, "tensors"),
                Evidence("steps without any gradient", view.history.steps, self.thresholds.idle_steps, "steps"),
            ),
            params={"n": held, "steps": view.history.steps, "share": 100.0},
            variant="idle",
            key="idle",
        )

    def _starved(self, view: View) -> bool:
        """Whether only biases and norms train, and the loss falls little for it."""
        assert view.facts is not None
        trained = [fact for fact in view.facts.parameters.values() if fact.trainable]
        only_vectors = bool(trained) and all(len(fact.shape) < 2 for fact in trained)
        if not only_vectors or view.history.steps < self.thresholds.steps:
            return False
        return view.harm.reason == "not_falling" or self._unlearned(view)

    def _unlearned(self, view: View) -> bool:
        loss = view.loss
        return loss.first > 0 and loss.recent > self.thresholds.unlearned * loss.first

    def _draft(
        self,
        severity: Severity,
        confidence: float,
        share: float,
        facts: list[ParameterFact],
        variant: str,
        params: Mapping[str, float] | None = None,
    ) -> Draft:
        return Draft(
            severity=severity,
            confidence=confidence,
            step=0,
            where=tuple(fact.name for fact in facts),
            evidence=(Evidence("share of elements that are frozen", share, self.thresholds.frozen_share, ""),),
            params={"share": 100 * share, "n": len(facts), **(params or {})},
            variant=variant,
            key=variant if variant in ("owned", "between") else "",
            optimizer="",
        )


def _frozen_between(facts: Sequence[ParameterFact]) -> list[ParameterFact]:
    """Return frozen weights of layers that have trained ones of their row both before and after them.

    Fine-tuning freezes from the input upwards, adapters freeze everything, and a teacher or a momentum encoder is
    frozen as a whole: none of them leaves a hole in a row of like layers (`net.0`, `net.2`, `net.4`; `fc1`, `fc2`,
    `fc3`).
    """
    rows: dict[tuple[str, str, str], list[ParameterFact]] = {}
    for fact in facts:
        if len(fact.shape) >= 2 and not is_norm(fact) and not is_embedding(fact.name, fact):
            rows.setdefault(_row(fact), []).append(fact)
    found: list[ParameterFact] = []
    for row in rows.values():
        trained = [place for place, fact in enumerate(row) if fact.trainable]
        if not trained:
            continue
        inner = [fact for place, fact in enumerate(row) if trained[0] < place < trained[-1] and not fact.trainable]
        if len(inner) < len(trained):
            found += inner
    return found


def _row(fact: ParameterFact) -> tuple[str, str, str]:
    """Return what the layers of one row share: numbers masked, or, where a name has none, the module around it."""
    masked = template(fact.name)
    around = fact.module.rpartition(".")[0] if masked == fact.name else masked
    return around, fact.kind, fact.name.rpartition(".")[2]
