"""GM109 wrong-mode: a model is trained in evaluation mode, so that dropout and batch statistics are off."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradmedic.diagnosis.draft import Draft, Kind
from gradmedic.diagnosis.finding import Evidence
from gradmedic.diagnosis.module_rows import SampledRow
from gradmedic.diagnosis.view import View
from gradmedic.types import Severity


@dataclass(frozen=True)
class Thresholds:
    """Steps in evaluation mode, in a row."""

    steps: int = 10
    """rules.md: 10 steps."""
    virgin_steps: int = 3
    """The same where running statistics were never written: such a normalisation divides by one."""
    samples: int = 3
    """Sampled steps, for single layers in evaluation mode."""


class WrongMode:
    """Modes as modules have them, of models that the loss reaches.

    A whole model in evaluation mode that was in training mode before, or whose batch normalisation has no statistics
    yet, was forgotten there. One that came with statistics, and single normalisation layers, are frozen by design as
    often as by mistake: a note.
    """

    code = "GM109"
    name = "wrong-mode"
    kind: Kind = "invariant"
    needs: frozenset[str] = frozenset()
    lasting = True

    def __init__(self, thresholds: Thresholds | None = None) -> None:
        self.thresholds = thresholds or Thresholds()
        self._partial: dict[tuple[str, str], int] = {}
        self._last: dict[tuple[str, str, str], Draft] = {}

    def evaluate(self, view: View) -> Iterator[Draft]:
        """Look at the rows of a frame; at the end say for how long it was seen to be so."""
        if view.final:
            yield from (draft for (name, _, _), draft in self._last.items() if name == view.frame.optimizer)
            return
        rows = [SampledRow(view.frame.step, row) for row in view.frame.modules if row.get("what") == "mode"]
        models = [row for row in rows if row.leaf == "model"]
        # Several passes of one step: a model is in evaluation mode only where it is in all of them.
        for name in dict.fromkeys(row.module for row in models):
            passes = [row for row in models if row.module == name]
            if any(row.get("training") > 0 and not row.get("norms_eval") for row in passes):
                self._partial.pop((view.frame.optimizer, name), None)
                continue
            row = passes[-1]
            draft = self._whole(view, row, rows) if row.get("eval_steps") > 0 else self._single(view, row, rows)
            if draft is not None:
                known = self._last.setdefault((view.frame.optimizer, draft.key, draft.variant), draft)
                if known.step == draft.step:
                    self._last[view.frame.optimizer, draft.key, draft.variant] = draft
                yield draft

    def _whole(self, view: View, row: SampledRow, rows: Sequence[SampledRow]) -> Draft | None:
        limits, steps = self.thresholds, row.get("eval_steps")
        virgin = row.get("norms_eval") > 0 and row.get("virgin") > 0
        if not (row.get("norms_eval") or row.get("dropouts_eval")):
            return None  # nothing in it knows the difference
        if virgin and steps >= limits.virgin_steps:
            return self._draft(view, row, rows, "never", "error", 0.95)
        if steps < limits.steps:
            return None
        if row.get("train_steps") > 0:
            return self._draft(view, row, rows, "left", "error" if view.harm else "warning", 0.9)
        return self._draft(view, row, rows, "fine_tuning", "info", 0.5)

    def _single(self, view: View, row: SampledRow, rows: Sequence[SampledRow]) -> Draft | None:
        key = (view.frame.optimizer, row.module)
        seen = self._partial[key] = self._partial.get(key, 0) + 1
        if seen < self.thresholds.samples:
            return None
        virgin = row.get("virgin") > 0
        return self._draft(
            view, row, rows, "layers_never" if virgin else "layers", "warning" if virgin else "info", 0.7
        )

    def _draft(
        self,
        view: View,
        row: SampledRow,
        rows: Sequence[SampledRow],
        variant: str,
        severity: Severity,
        confidence: float,
    ) -> Draft:
        whole = row.get("eval_steps") > 0
        steps = row.get("eval_steps") if whole else float(self._partial[view.frame.optimizer, row.module])
        return Draft(
            severity=severity,
            confidence=confidence,
            step=_onset(view, row) if whole else 0,
            where=_named(rows, row.module),
            evidence=(
                Evidence("steps in evaluation mode, in a row", steps, self.thresholds.steps)
                if whole
                else Evidence("sampled steps in evaluation mode", steps, self.thresholds.samples),
                Evidence("batch normalisations in evaluation mode", row.get("norms_eval")),
                Evidence("dropouts in evaluation mode", row.get("dropouts_eval")),
            ),
            params={**_counts(row, steps), "last": view.frame.step},
            variant=variant,
            key=row.module,
        )


def _onset(view: View, row: SampledRow) -> int:
    """Return the first step of the latest ones in evaluation mode.

    The models of an unmodified script are looked for at its first step, so that their modes are known from step 1 on.
    """
    step = max(0, view.frame.step + 1 - int(row.get("eval_steps")))
    return 0 if step == 1 and not row.get("train_steps") else step


def _counts(row: SampledRow, steps: float) -> Mapping[str, Any]:
    norms, dropouts = row.get("norms_eval"), row.get("dropouts_eval")
    return {
        "off": "@mode_both" if norms and dropouts else ("@mode_norms" if norms else "@mode_dropouts"),
        "steps": int(steps),
        "before": int(row.get("train_steps")),
        "norms": int(norms),
        "dropouts": int(dropouts),
    }


def _named(rows: Sequence[SampledRow], model: str) -> tuple[str, ...]:
    """Return the modules of a model that are in evaluation mode, normalisations first."""
    mine = [row for row in rows if row.leaf != "model" and (not model or row.module.startswith(f"{model}."))]
    norms = [row.module for row in mine if row.leaf == "norm"]
    return tuple(dict.fromkeys([*norms, *(row.module for row in mine if row.leaf == "dropout")]))
