"""What a diagnosis says: findings, the evidence they rest on, and what to do about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradmedic.diagnosis.actions import Action
from gradmedic.types import SEVERITIES, Severity

#: A number, a short text such as a class name, or None where nothing could be measured.
Value = float | int | str | None


def rank_of(severity: Severity) -> int:
    """Return 0 for "info" up to 3 for "critical"."""
    return SEVERITIES.index(severity)


def _strict(value: Any) -> Any:
    """Return `value` as strict JSON can hold it; NaN and the infinities become the strings that `float()` reads."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {str(key): _strict(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(entry) for entry in value]
    if hasattr(value, "item"):  # numpy scalars
        return _strict(value.item())
    return value


def _number(value: Any) -> Any:
    return float(value) if value in ("NaN", "Infinity", "-Infinity") else value


@dataclass(frozen=True, slots=True)
class Evidence:
    """One measured value, beside the threshold that it crossed and the unit of both."""

    name: str
    value: Value
    threshold: Value = None
    unit: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return a strict-JSON mapping; non-finite numbers become "NaN", "Infinity" or "-Infinity"."""
        return {
            "name": self.name,
            "value": _strict(self.value),
            "threshold": _strict(self.threshold),
            "unit": self.unit,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evidence:
        """Read what `to_json` wrote."""
        return cls(data["name"], _number(data["value"]), _number(data.get("threshold")), data.get("unit", ""))


@dataclass(frozen=True, slots=True)
class Remedy:
    """One thing to do, in words and as data: a mapping of the vocabulary in `gradmedic.diagnosis.actions`, or None."""

    text: str
    action: Action | None = field(default=None, hash=False)

    def to_json(self) -> dict[str, Any]:
        """Return a strict-JSON mapping."""
        return {"text": self.text, "action": None if self.action is None else _strict(self.action)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Remedy:
        """Read what `to_json` wrote; an action that is no mapping is left out."""
        action = data.get("action")
        return cls(data["text"], dict(action) if isinstance(action, Mapping) else None)


@dataclass(frozen=True, slots=True)
class Finding:
    """One named fault of a training run.

    Attributes:
        code, name: the rule's stable code ("GM301") and name ("vanishing-gradient").
        severity: "info", "warning", "error" or "critical".
        confidence: in [0, 1].
        step: first step of the trouble, counted per optimizer from 0.
        optimizer: name of the optimizer concerned; "" when it is the run as a whole.
        where: names of tensors or modules, most telling first; empty when it is the run as a whole.
        evidence: what was measured, against which threshold.
        message: one paragraph in `lang`.
        remedies: what to do, most promising first.
        folded: findings that are consequences of this one, and therefore not listed by themselves.
        title: a short heading in `lang`.
        variant, params: which wording of the rule's messages holds, and what fills it in; `in_language` uses them.
        lang: "en" or "zh".
    """

    code: str
    name: str
    severity: Severity
    confidence: float
    step: int
    optimizer: str = ""
    where: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    message: str = ""
    remedies: tuple[Remedy, ...] = ()
    folded: tuple[Finding, ...] = ()
    title: str = ""
    variant: str = ""
    params: Mapping[str, Any] = field(default_factory=dict, hash=False)
    lang: str = "en"

    def to_json(self, *, full: bool = False) -> dict[str, Any]:
        """Return a strict-JSON mapping.

        Args:
            full: also keep what is needed to render the finding anew in another language, the optimizer, and the
                folded findings whole. Without it exactly the keys of `gradmedic diagnose --format json` are written.

        Returns:
            A mapping without NaN or infinity: such evidence values are the strings "NaN", "Infinity", "-Infinity".
        """
        data: dict[str, Any] = {
            "code": self.code,
            "name": self.name,
            "severity": self.severity,
            "confidence": round(float(self.confidence), 4),
            "step": int(self.step),
            "where": list(self.where),
            "evidence": [entry.to_json() for entry in self.evidence],
            "message": self.message,
            "remedies": [remedy.to_json() for remedy in self.remedies],
            "folded": [finding.brief() for finding in self.folded],
        }
        if full:
            data |= {
                "optimizer": self.optimizer,
                "title": self.title,
                "variant": self.variant,
                "params": _strict(dict(self.params)),
                "lang": self.lang,
                "folded": [finding.to_json(full=True) for finding in self.folded],
            }
        return data

    def brief(self) -> dict[str, Any]:
        """Return what is said of a finding that follows from another one: code, name, where and step."""
        return {"code": self.code, "name": self.name, "where": list(self.where), "step": int(self.step)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Finding:
        """Read what `to_json` or `brief` wrote, in any form; unknown keys are left out."""
        return cls(
            code=data["code"],
            name=data["name"],
            severity=data.get("severity", "info"),
            confidence=float(data.get("confidence", 0.0)),
            step=int(data["step"]),
            optimizer=data.get("optimizer", ""),
            where=tuple(data.get("where", ())),
            evidence=tuple(Evidence.from_json(entry) for entry in data.get("evidence", ())),
            message=data.get("message", ""),
            remedies=tuple(Remedy.from_json(entry) for entry in data.get("remedies", ())),
            folded=tuple(cls.from_json(entry) for entry in data.get("folded", ())),
            title=data.get("title", ""),
            variant=data.get("variant", ""),
            params={key: _restored(value) for key, value in data.get("params", {}).items()},
            lang=data.get("lang", "en"),
        )

    def __str__(self) -> str:
        """Return one paragraph: code, name, severity, step, message and the first remedy."""
        label = f"{self.code} {self.name} [{self.severity}, step {self.step}]"
        gap = "" if self.lang == "zh" else " "
        text = f"{label} {self.message}"
        return f"{text}{gap}{self.remedies[0].text}" if self.remedies else text


def _restored(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_restored(entry) for entry in value)
    return _number(value) if isinstance(value, str) else value
