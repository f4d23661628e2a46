"""Advice on clipping in the terminal, and as JSON."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gradmedic.clip.advice import ClipAdvice
from gradmedic.clip.trial.results import Note, OptimizerAdvice, Outcome
from gradmedic.diagnosis import wording
from gradmedic.diagnosis.wording import counted
from gradmedic.report.clip_words import LABELS, SENTENCES
from gradmedic.report.paragraph import Paragraph

#: So many layers are shown.
SHOWN_LAYERS = 6
_INDENT = (0, 0, 0, 2)


def render_clip_advice(
    advice: ClipAdvice, *, lang: str = "en", console: Console | None = None, width: int | None = None
) -> str | None:
    """Show advice on clipping: a table for each optimizer, what is recommended, and why.

    Args:
        advice: what `Run.clip_advice` returns.
        lang: "en" or "zh".
        console: where to print; None returns the text, without colour.
        width: columns; by default the console's, or 80.

    Returns:
        None when printed to a console, else the text.

    Raises:
        InputError: no such language.
    """
    wording.messages(lang)
    screen = Group(*_screen(advice, lang))
    if console is not None:
        console.print(screen, width=width)
        return None
    plain = Console(file=io.StringIO(), width=width or 80, color_system=None, force_terminal=False)
    with plain.capture() as captured:
        plain.print(screen)
    return "".join(line.rstrip() + "\n" for line in captured.get().splitlines())


def clip_advice_json(advice: ClipAdvice, lang: str = "en") -> str:
    """Return advice on clipping as strict JSON: "run" and "optimizers", with everything that was measured.

    Args:
        advice: what `Run.clip_advice` returns.
        lang: language of the sentences, "en" or "zh".

    Raises:
        InputError: no such language.
    """
    wording.messages(lang)
    data = {"run": advice.path, "optimizers": [_optimizer_json(entry, lang) for entry in advice.optimizers]}
    return json.dumps(data, ensure_ascii=False, allow_nan=False, indent=2)


def sentence(note: Note, lang: str) -> str:
    """Return a note in words."""
    return SENTENCES[lang][note.key].format_map({key: _plain(key, value, lang) for key, value in note.params.items()})


def _plain(key: str, value: Any, lang: str) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        entries = [str(entry) for entry in value]
        return (
            wording.messages(lang)["phrases"]["list_separator"].join(entries)
            if key == "methods"
            else wording.names(entries, lang)
        )
    if value is None:
        return "?"
    if key.endswith("share"):
        return wording.share(value)
    return counted(value)


def _screen(advice: ClipAdvice, lang: str) -> Iterator[RenderableType]:
    labels = LABELS[lang]
    if not advice.optimizers:
        yield Paragraph(labels["no_steps"], label="gradmedic: ")
    for at, entry in enumerate(advice.optimizers):
        if at:
            yield Text("")
        yield from _heading(entry, lang)
        if entry.problem is not None:
            yield Padding(Paragraph(sentence(entry.problem, lang)), _INDENT)
            continue
        yield _methods(entry, lang)
        yield Padding(Paragraph(_legend(entry, lang), style="dim"), _INDENT)
        if entry.layers:
            yield Text("")
            yield _layers(entry, lang)
            yield Padding(Paragraph(_layers_legend(entry, lang), style="dim"), _INDENT)
        yield Text("")
        yield from _recommendation(entry, lang)


def _heading(entry: OptimizerAdvice, lang: str) -> Iterator[RenderableType]:
    labels = LABELS[lang]
    name = entry.optimizer + (f" ({entry.kind})" if entry.kind else "")
    yield Text(f"gradmedic {labels['title']}{labels['colon']}{name}", style="bold")
    if entry.problem is None:
        counts = {"tried": counted(entry.tried), "steps": counted(entry.steps)}
        scope = labels["scope"].format(**counts, first=entry.first, last=entry.last)
        yield Padding(Paragraph(scope, style="dim"), _INDENT)


def _methods(entry: OptimizerAdvice, lang: str) -> Table:
    labels = LABELS[lang]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("", width=1)
    table.add_column(labels["method"], overflow="fold")
    table.add_column(labels["level"], no_wrap=True)
    for key in ("clipped", "scale", "step", "spikes"):
        table.add_column(labels[key], justify="right", no_wrap=True)
    for outcome in entry.outcomes:
        chosen = outcome is entry.recommended
        table.add_row(
            "*" if chosen else "",
            outcome.method,
            labels.get(outcome.note, outcome.note),
            _percent(outcome.clipped_share),
            f"{outcome.mean_scale:.2f}",
            "" if outcome.step_ratio is None else f"{outcome.step_ratio:.2f}",
            f"{outcome.caught}/{outcome.spikes}",
            style="bold" if chosen else "",
        )
    return table


def _legend(entry: OptimizerAdvice, lang: str) -> str:
    labels = LABELS[lang]
    modelled = labels["modelled"].format(kind=entry.kind) if entry.family == "adaptive" else ""
    return labels["legend"].format(modelled=modelled)


def _layers(entry: OptimizerAdvice, lang: str) -> Table:
    labels = LABELS[lang]
    by_tensor = [outcome for outcome in entry.outcomes if outcome.layers]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False)
    table.add_column("", width=1)
    table.add_column(labels["layer"], overflow="fold")
    for key in ("median", "p95", "share", "leading"):
        table.add_column(labels[key], justify="right", no_wrap=True)
    for outcome in by_tensor:
        table.add_column(_short(outcome), justify="right", no_wrap=True)
    for layer in entry.layers[:SHOWN_LAYERS]:
        clipped = [_percent(o.layers[layer.name][0]) if layer.name in o.layers else "" for o in by_tensor]
        sizes = (wording.number(layer.median), wording.number(layer.p95))
        table.add_row("", layer.name or ".", *sizes, _percent(layer.share), _percent(layer.leading_share), *clipped)
    return table


def _layers_legend(entry: OptimizerAdvice, lang: str) -> str:
    rest = len(entry.layers) - SHOWN_LAYERS
    more = " " + LABELS[lang]["layers_more"].format(n=counted(rest)) if rest > 0 else ""
    return LABELS[lang]["layers_legend"] + more


def _short(outcome: Outcome) -> str:
    return "per tensor" if "per=" in outcome.method else outcome.method.partition("(")[0]


def _recommendation(entry: OptimizerAdvice, lang: str) -> Iterator[RenderableType]:
    labels = LABELS[lang]
    chosen = entry.recommended
    if chosen is None:
        return
    colon = labels["colon"]
    yield Text.assemble((labels["recommended"] + colon, "bold"), (chosen.method, "bold green"))
    for note in entry.reasons:
        yield Padding(Paragraph(sentence(note, lang), label="- "), _INDENT)
    use = labels["run"].format(method=chosen.method, expression=chosen.expression)
    yield Paragraph(use, label=labels["use"] + colon)
    basis = (" " if lang == "en" else "").join(sentence(note, lang) for note in entry.notes)
    yield Paragraph(basis, label=labels["basis"] + colon, style="dim")


def _percent(value: float) -> str:
    return f"{100 * value:.0f}%" if value >= 0.0995 or value == 0 else f"{100 * value:.1f}%"


def _optimizer_json(entry: OptimizerAdvice, lang: str) -> dict[str, Any]:
    names = ("optimizer", "kind", "family", "steps", "tried", "healthy", "first", "last", "drift")
    data: dict[str, Any] = {name: getattr(entry, name) for name in names}
    rate = entry.rate
    data |= {
        "percentiles": dict(entry.percentiles),
        "spikes": list(entry.spikes),
        "learning_rate": {
            "window": rate.window,
            "steps": list(rate.steps),
            "correlation": list(rate.values),
            "rank_correlation": rate.whole,
            "span": rate.span,
            "norm_ratio": rate.level,
        },
        "methods": [_outcome_json(outcome) for outcome in entry.outcomes],
        "layers": [
            {key: getattr(layer, key) for key in ("name", "tensors", "median", "p95", "share", "leading_share")}
            for layer in entry.layers
        ],
        "recommended": None if entry.recommended is None else entry.recommended.method,
        "expression": None if entry.recommended is None else entry.recommended.expression,
        "reasons": [_note_json(note, lang) for note in entry.reasons],
        "notes": [_note_json(note, lang) for note in entry.notes],
        "problem": None if entry.problem is None else _note_json(entry.problem, lang),
    }
    strict: dict[str, Any] = _strict(data)
    return strict


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    numbers = ("clipped_share", "calm_share", "skipped_share", "mean_scale", "step_ratio", "spikes", "caught")
    return {
        **{key: getattr(outcome, key) for key in ("method", "expression", "note", "adapts", "steps", *numbers)},
        "layers": {name: {"clipped_share": s, "mean_scale": f} for name, (s, f) in outcome.layers.items()},
    }


def _note_json(note: Note, lang: str) -> dict[str, Any]:
    return {"key": note.key, "params": dict(note.params), "text": sentence(note, lang)}


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _strict(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_strict(entry) for entry in value]
    return value
