"""What a notebook shows of runs, findings and frames: static HTML, without scripts, that stands on light and dark."""

from __future__ import annotations

from gradmedic.report.notebook.findings_html import findings_html as findings_html
from gradmedic.report.notebook.frame_html import frame_html as frame_html
from gradmedic.report.notebook.run_html import run_html as run_html

__all__ = ["findings_html", "frame_html", "run_html"]
