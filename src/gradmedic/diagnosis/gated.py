"""Taking back what was said because a loss did not fall, when it falls after all."""

from __future__ import annotations

from gradmedic.diagnosis.finding import Finding
from gradmedic.diagnosis.view import View

#: Losses in a row that are not seen diverged, until a run counts as recovered.
CALM = 20


def still_harmed(finding: Finding, view: View) -> bool:
    """Whether a finding's evidence of harm still stands.

    A loss that does not fall may begin to: slow starts look like any fault. Divergence and NaN are not taken back.

    Args:
        finding: of a rule that fires on harm, with the phrase of that harm among its `params`.
        view: the present.
    """
    if finding.severity == "info" or finding.optimizer not in ("", view.frame.optimizer):
        return True
    return not (finding.params.get("harm") == "@harm_not_falling" and view.loss.falling)


def has_recovered(finding: Finding, view: View) -> bool:
    """Whether a loss that a finding calls diverged has come down again, and falls.

    Data that change, and single steps that were too large, throw a loss up; a run that learns on is well.

    Args:
        finding: with the phrase of its harm among its `params`.
        view: the present.
    """
    if finding.optimizer != view.frame.optimizer or finding.params.get("harm") != "@harm_diverged":
        return False
    loss = view.loss
    return view.harm.reason == "" and loss.calm >= CALM and loss.falling is True
