"""The page: one template, one style, one script, two lives: with its data inside, or fed by the live server."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any

from gradmedic.errors import InputError
from gradmedic.report.needs import needed

LANGUAGES: tuple[str, ...] = ("en", "zh")

#: The page's script, in this order: what is below stands before what uses it.
SCRIPTS: tuple[str, ...] = (
    *("base", "text", "words", "packed", "colors", "address", "state", "view", "rows", "columns"),
    *("overlay", "zoom", "chart", "traces", "marks", "heat", "sections"),
    *("sections/verdict", "sections/findings", "sections/loss", "sections/norm", "sections/clip", "sections/heatmap"),
    *("flow_layers", "flow_picture", "sections/flow", "sections/distribution", "sections/evolution", "sections/ratio"),
    *("sections/direction", "sections/schedule", "sections/heads", "sections/tree", "sections/environment"),
    *("source", "topbar", "main"),
)

#: What JSON must not hold as it is inside a <script>: it could end the element, or open a comment.
_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def render_page(payloads: Sequence[Mapping[str, Any]] | None, *, lang: str = "en", live: bool = False) -> str:
    """Return the page as one HTML text.

    The report is self-contained: it opens offline, loads nothing, and its content security policy forbids it to. The
    live page asks the server that it came from, and nothing else, for `/plotly.js` and `/api/runs`.

    Args:
        payloads: what `build_payload` returns, one for each run, in the order in which they are offered; None (or
            empty) on the live page, whose data come from the server.
        lang: "en" or "zh", the language the page opens in; the other one can be chosen on the page.
        live: whether the data come from the server.

    Returns:
        The text of the file, to be written as UTF-8.

    Raises:
        InputError: there is no such language, a report without runs, or plotly is not installed (a report only).

    Example:
        >>> page = render_page(None, lang="en", live=True)
        >>> page.startswith("<!DOCTYPE html>")
        True
    """
    if lang not in LANGUAGES:
        raise InputError(f"lang must be one of {', '.join(LANGUAGES)}, not {lang!r}")
    if not live and not payloads:
        raise InputError("a report expects at least one run, got none; for a page fed by a server set live=True")
    # jinja2 is imported here and not above, so that a page costs nothing until one is made.
    jinja2 = needed("jinja2", "the page needs jinja2", "report")
    from gradmedic import __version__

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    words = page_words()
    html: str = environment.from_string(asset("page.html")).render(
        lang=lang,
        live=live,
        version=__version__,
        policy=content_security_policy(live=live),
        title=_title(payloads or (), words[lang]),
        noscript=words[lang]["page"]["noscript"],
        style=asset("style.css"),
        words=embedded_json(words),
        runs=[{"name": _name(payload), "data": embedded_json(payload)} for payload in payloads or ()],
        plotly="" if live else plotly_script(),
        script=page_script(),
    )
    return html


def content_security_policy(*, live: bool = False) -> str:
    """Return the page's policy: nothing from anywhere but the page itself and, when live, its own server.

    Scripts and styles are inline, since a report is one file; names of a run never become either. Figures are drawn
    by way of data: and blob: images.
    """
    own = " 'self'" if live else ""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'unsafe-inline'{own}",
            "style-src 'unsafe-inline'",
            "img-src data: blob:",
            f"connect-src{own or chr(32) + chr(39) + 'none' + chr(39)}",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


@lru_cache(maxsize=1)
def page_script() -> str:
    """Return the page's own script: its files one after another."""
    return "\n".join(asset(f"js/{name}.js") for name in SCRIPTS)


@lru_cache(maxsize=1)
def page_words() -> dict[str, dict[str, Any]]:
    """Return the page's words by language, with the diagnosis' names of evidence, units and severities."""
    from gradmedic.diagnosis import wording

    # tomllib came with Python 3.11; tomli is the same parser for 3.10.
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    books = {}
    for lang in LANGUAGES:
        messages = wording.messages(lang)
        books[lang] = {
            **toml.loads(asset(f"words/{lang}.toml")),
            "severity": dict(messages["severity"]),
            "evidence_names": dict(messages.get("evidence", {})),
            "unit_names": dict(messages.get("units", {})),
            "one_unit": dict(messages["one_unit"]),
        }
    return books


def plotly_script() -> str:
    """Return Plotly's JavaScript, as it comes with its Python package.

    Raises:
        InputError: plotly is not installed.
    """
    script: str = needed("plotly.offline", "the page needs plotly", "report").get_plotlyjs()
    return script


def asset(name: str) -> str:
    """Return the text of one of the page's files."""
    return resources.files("gradmedic.report.page").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def embedded_json(value: Any) -> str:
    """Return strict JSON that can stand inside a <script> element, whatever texts it holds.

    Example:
        >>> embedded_json({"name": "</script>"})
        '{"name":"\\\\u003c/script\\\\u003e"}'
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign, escape in _ESCAPES.items():
        if sign in text:
            text = text.replace(sign, escape)
    # A lone surrogate (a file name that is not UTF-8) cannot be written as UTF-8.
    return text.encode("utf-8", "replace").decode("utf-8")


def _name(payload: Mapping[str, Any]) -> str:
    return str(payload["run"]["name"]).encode("utf-8", "replace").decode("utf-8")


def _title(payloads: Sequence[Mapping[str, Any]], words: Mapping[str, Any]) -> str:
    title = str(words["page"]["title"])
    return f"{_name(payloads[0])} · {title}" if len(payloads) == 1 else title
