"""What a notebook shows of a monitor in place of its address."""

from __future__ import annotations


class ShownAsHtml:
    """A monitor that notebooks show as a table; what draws it is imported only then."""

    _closed: bool

    @property
    def closed(self) -> bool:
        """Whether watching has ended."""
        return self._closed

    def _repr_html_(self) -> str:
        from gradmedic.report.notebook.monitor_html import monitor_html

        return monitor_html(self)
