"""A comparison on the report page of both runs."""

from __future__ import annotations

from gradmedic.compare.comparison import Comparison
from gradmedic.compare.rendering import render_section
from gradmedic.record.run import Run

_PLACE = "</header>"


def render_compared_page(comparison: Comparison, a: Run, b: Run, *, lang: str = "en") -> str:
    """Return the report page of two runs with their comparison above it, as one HTML text.

    Args:
        comparison: of the two.
        a, b: the runs.
        lang: "en" or "zh".

    Raises:
        InputError: plotly is not installed.
    """
    from gradmedic.report.page.payload import build_payload
    from gradmedic.report.page.render import render_page

    page = render_page([build_payload(a), build_payload(b)], lang=lang, live=False)
    page = page.replace("<html ", '<html data-compare="true" ', 1)  # the second run lies over the first
    head, mark, rest = page.partition(_PLACE)
    section = render_section(comparison, lang=lang)
    return f"{head}{mark}\n{section}{rest}" if mark else page.replace("</body>", f"{section}</body>", 1)
