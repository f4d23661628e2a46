"""The numbers of a run as they stand under the verdict: one line each, and one line for each of several optimizers."""

from __future__ import annotations

import math

from rich.table import Table

from gradmedic.diagnosis import wording
from gradmedic.diagnosis.rules.over_clipping import Thresholds
from gradmedic.diagnosis.wording import Counted, counted
from gradmedic.plain_text import abridged
from gradmedic.report.rank_lines import rank_lines
from gradmedic.report.run_summary import RunSummary, Series
from gradmedic.report.switched_off import in_words
from gradmedic.report.text_words import WORDS

#: So many optimizers and processes get a line of their own.
SHOWN = 6


#: So many things that could not be read are told.
PROBLEMS = 2


#: So many parts that failed are told.
TROUBLES = 4


#: A largest norm this many times the largest of the medians is told: it stands alone.
STANDS_OUT = 100.0


#: From this share of the time on it is told why watching costs so much, of steps that are shorter than so many seconds:
#: what a step costs beside its passes over memory is about a millisecond, whatever the model.
COSTLY, SHORT_STEP = 0.2, 0.05


#: So many steps are enough for a check-up: all rules but those that need a long run have spoken.
CHECKUP_STEPS = 300


#: From so many parameters on, what is usual for the norms of large models is told beside those of the run.
LARGE_MODEL = 10_000_000


#: So many layers are named that carry most of the gradient.
LAYERS = 3


#: Rates of parameter groups that are spelled out.
_SHOWN_RATES = 4


def facts_table(summary: RunSummary, lang: str) -> Table:
    """Return a grid of labels and values."""
    words = WORDS[lang]
    large = (summary.parameters or 0) >= LARGE_MODEL
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(words["run"], words["comma"].join(_sizes(summary, lang)))
    for label, value in rank_lines(summary.ranks, summary.noise, lang):
        grid.add_row(label, value)
    if len(summary.series) == 1:
        for label, value in _values(summary.series[0], lang, large):
            grid.add_row(label, value)
        for label, value in _layers(summary.series[0], lang):
            grid.add_row(label, value)
    else:
        for series in summary.series[:SHOWN]:
            steps = words["steps"].format(steps=counted(series.steps))
            parts = [steps, *(f"{label} {value}" for label, value in _values(series, lang, large))]
            grid.add_row(_name(series, lang), words["comma"].join(parts))
        rest = len(summary.series) - SHOWN
        if rest > 0:
            grid.add_row("", words["other_series"].format(n=rest))
    for key, n, remark in (("clipped", summary.clipped, _clipping(summary, lang)), ("skipped", summary.skipped, "")):
        if n:
            told = words["of_steps"].format(n=counted(n), share=wording.share(n / summary.steps))
            grid.add_row(words[key], told + remark)
    if summary.not_judged:
        parts = [words[entry.reason] for entry in summary.not_judged]
        grid.add_row(words["not_judged"], words["semicolon"].join(parts))
    for label, value in _failures(summary, lang):
        grid.add_row(label, value)
    if summary.overhead is not None:
        grid.add_row(words["overhead"], _cost(summary, lang))
    return grid


def _failures(summary: RunSummary, lang: str) -> list[tuple[str, str]]:
    """Return (label, value) of what was switched off while the run was recorded, and of what could not be read."""
    words = WORDS[lang]
    found = [
        ("" if at else words["trouble"], in_words(each, lang)) for at, each in enumerate(summary.troubles[:TROUBLES])
    ]
    if len(summary.troubles) > TROUBLES:
        found.append(("", words["other_series"].format(n=len(summary.troubles) - TROUBLES)))
    if summary.problems:
        shown = [abridged(problem) for problem in summary.problems[:PROBLEMS]]
        rest = len(summary.problems) - len(shown)
        more = [words["other_series"].format(n=rest)] if rest else []
        found.append((words["damaged"], words["semicolon"].join([*shown, *more])))
    return found


def _clipping(summary: RunSummary, lang: str) -> str:
    """Return how far the clipped steps were scaled down, and whether that is too much to be told from so few."""
    words, factor = WORDS[lang], summary.clip_factor
    if factor is None or factor >= 1.0:
        return ""
    told = words["comma"] + words["clip_factor"].format(factor=wording.number(factor))
    limits = Thresholds()
    steps = max((series.steps for series in summary.series), default=0)
    heavy = summary.clipped > limits.share * summary.steps and factor < limits.factor
    return told + words["too_few_to_tell"].format(n=limits.early) if heavy and steps < limits.early else told


def _cost(summary: RunSummary, lang: str) -> str:
    """Return the share of the time that watching took; where steps are so short that it shows, also why."""
    words, share, step = WORDS[lang], summary.overhead or 0.0, summary.step_seconds
    told = words["of_time"].format(share=wording.share(share))
    if step is None or share < COSTLY or step > SHORT_STEP:
        return told
    told += words["fixed_cost"].format(own=_milliseconds(share * step), step=_milliseconds(step))
    return told + words["enough_steps"].format(n=CHECKUP_STEPS) if summary.steps > CHECKUP_STEPS else told


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2g} ms"


def _sizes(summary: RunSummary, lang: str) -> list[str]:
    words = WORDS[lang]
    parts = [words["steps"].format(steps=counted(summary.steps))]
    if len(summary.optimizers) > 1:
        parts.append(words["optimizers"].format(n=counted(len(summary.optimizers))))
    if summary.seconds is not None:
        parts.append(_duration(summary.seconds))
    if summary.tensors is not None:
        parameters = _count(summary.parameters or 0)
        parts.append(words["tensors"].format(tensors=counted(summary.tensors), parameters=parameters))
    return parts


def _name(series: Series, lang: str) -> str:
    name = abridged(series.optimizer)
    return WORDS[lang]["process"].format(name=name, n=series.process) if series.process else name


def _rates(series: Series, lang: str) -> str:
    """Return the learning rate, first and last where they differ, a peak between, and those of groups that differ."""
    assert series.lr is not None
    began, ended = series.lrs or ((series.lr[0],), (series.lr[1],))
    if series.peak is not None:
        rates, step = series.peak
        return " → ".join(map(_row, (began, rates, ended))) + WORDS[lang]["peak"].format(step=step)
    if len(began) == len(ended) == 1:
        return wording.number(began[0]) if began == ended else _arrow(began[0], ended[0])
    first, last = _row(began), _row(ended)
    return first if first == last else f"{first} → {last}"


def _row(rates: tuple[float, ...]) -> str:
    """Return rates beside each other; of many only the lowest and the highest."""
    if len(rates) > _SHOWN_RATES:
        return f"{wording.number(min(rates))} … {wording.number(max(rates))}"
    return " | ".join(map(wording.number, rates))


def _values(series: Series, lang: str, large: bool) -> list[tuple[str, str]]:
    """Return (label, value) of loss, learning rate and gradient norm, those that are known."""
    words = WORDS[lang]
    found: list[tuple[str, str]] = []
    if series.loss is not None:
        found.append((words["loss"], _arrow(*series.loss)))
    if series.lr is not None:
        found.append((words["lr"], _rates(series, lang)))
    if series.norms:
        left_out = words["left_out"].format(n=counted(series.skipped)) if series.skipped else ""
        if series.nonfinite and any(math.isfinite(norm) for norm in series.norms):
            left_out += words["nonfinite_norms"].format(n=counted(series.nonfinite))
        usual = _spike(series, lang) or (words["usual"] if large and len(series.norms) == 3 else "")
        phase = f"{words['open']}{words['norm_phase']}{usual}{left_out}{words['close']}"
        found.append((words["norm"], _arrow(*series.norms) + phase))
    return found


def _spike(series: Series, lang: str) -> str:
    """Return the words for a single norm that no median shows, "" where there is none."""
    level = max((norm for norm in series.norms if math.isfinite(norm)), default=math.nan)
    if series.largest is None or not series.largest[0] > STANDS_OUT * level:
        return ""
    norm, step = series.largest
    return WORDS[lang]["largest"].format(norm=wording.number(norm), step=step)


def _layers(series: Series, lang: str) -> list[tuple[str, str]]:
    """Return (label, value) of what the layers carry, and of how neighbours compare."""
    words, flow = WORDS[lang], series.flow
    found: list[tuple[str, str]] = []
    if len(flow.shares) > 1:
        parts = [f"{wording.place(layer, lang)} {wording.share(share)}" for layer, share in flow.shares[:LAYERS]]
        found.append((words["carried"], words["comma"].join(parts)))
    if flow.ratio is not None and flow.steepest is not None:
        layer, after, ratio = flow.steepest
        value = words["ratio"].format(ratio=wording.number(flow.ratio))
        if flow.ratio != ratio:
            names = {"layer": wording.place(layer, lang), "after": wording.place(after, lang)}
            value += words["comma"] + words["steepest"].format(ratio=wording.number(ratio), **names)
        found.append((words["neighbours"], value))
    return found


def _arrow(*values: float) -> str:
    return " → ".join(wording.number(value) for value in values)


def _count(n: int) -> Counted:
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= size:
            return Counted(f"{n / size:.3g}{unit}")
    return counted(n)


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(int(minutes), 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest:.0f} s" if minutes else f"{rest:.3g} s"
