"""Taking back what was said because a loss did not fall, when it falls after all."""

from __future__ import annotations

from gradmedic.diagnosis.finding import Finding
from gradmedic.diagnosis.view import View


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
