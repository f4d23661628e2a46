"""What a rule hands to the engine: a finding that has no words yet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from gradmedic.diagnosis.finding import Evidence, Finding
from gradmedic.errors import InputError
from gradmedic.types import Severity

if TYPE_CHECKING:
    from gradmedic.diagnosis.view import View

Kind = Literal["invariant", "symptom"]


@dataclass(frozen=True, slots=True)
class Draft:
    """A finding without words; the engine adds the rule's code and name and renders the message.

    Attributes:
        variant: which of the rule's messages to use; "" for the main one.
        key: findings of one rule with different keys stand side by side; with the same key (and optimizer) the first
            stays, unless a later one is more severe.
        optimizer: None for the optimizer of the view.
        params: values for the message's placeholders. A text that starts with "@" is the name of a phrase in the
            message files, so that it can be rendered in either language.
    """

    severity: Severity
    confidence: float
    step: int
    where: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""
    key: str = ""
    optimizer: str | None = None


class Rule(Protocol):
    """One rule: evaluated once per frame, and once more at the end of the run with `view.final` set.

    A rule object belongs to one engine and may keep state between calls. It may also define
    `holds(finding, view) -> bool`: a finding for which it says False is withdrawn; `lasting = True`: what it says at
    the end of the run, of the same place and in the same variant, brings counts and evidence up to date; and
    `sampled = True`: of a frame without module rows and without events it has nothing to say, nor anything to remember,
    and is asked about none before the end.
    """

    code: str
    name: str
    kind: Kind
    needs: frozenset[str]

    def evaluate(self, view: View) -> Iterable[Draft]: ...


def check_rule(rule: Any) -> None:
    """Raise InputError unless this has what a rule must have, here rather than at the step that asks for it."""
    must = "a rule is an object with `code`, `name`, `kind`, `needs` (tensor columns, such as {'norm'}) and `evaluate`"
    if isinstance(rule, type):
        raise InputError(f"rules: expected a rule object, got the class itself; pass {rule.__name__}()")
    lacking = [name for name in ("code", "name", "kind", "needs", "evaluate") if not hasattr(rule, name)]
    if lacking:
        raise InputError(f"rules: {type(rule).__name__} has no {', '.join(map(repr, lacking))}; {must}")
    needs = rule.needs
    if not isinstance(needs, (Set, Sequence)) or isinstance(needs, str) or not all(isinstance(n, str) for n in needs):
        name = type(rule).__name__
        raise InputError(f"rules: needs of {name}: expected a set of column names, got {needs!r}; {must}")


class RevisableRule(Rule, Protocol):
    """A rule that can take back what it said."""

    def holds(self, finding: Finding, view: View) -> bool: ...
