"""The findings of a run, as they are handed out."""

from __future__ import annotations

from typing import Any, SupportsIndex, overload

from gradmedic.diagnosis.finding import Finding


class Findings(list[Finding]):
    """A list of findings, most likely root cause first, that prints one paragraph each and is a table in notebooks.

    Example:
        >>> print(Findings())
        no findings
    """

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> Finding: ...

    @overload
    def __getitem__(self, index: slice, /) -> Findings: ...

    def __getitem__(self, index: Any, /) -> Any:
        """Return a finding, or of a slice the findings, which print as these do."""
        found = super().__getitem__(index)
        return Findings(found) if isinstance(index, slice) else found

    def __str__(self) -> str:
        return "\n\n".join(map(str, self)) if self else "no findings"

    def _repr_html_(self) -> str:
        from gradmedic.report.notebook import findings_html

        return findings_html(self)
