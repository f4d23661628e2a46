"""The demo as it is seen: progress and words on stderr, the runs beside each other at the end."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gradmedic.cli.checkup import shortest
from gradmedic.cli.command import chosen_by_option
from gradmedic.cli.demo.training import SICK, TREATED, Recipe, train
from gradmedic.cli.session import examine
from gradmedic.report.text import render_checkup

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 48

_WORDS = {
    "en": {
        "sick": "1. A patient: a transformer on Python's own manual; learning rate {lr:g}, initial deviation {std:g}",
        "treated": "2. The same with learning rate {lr:g}, initial deviation {std:g}, gradients clipped at {norm:g}",
        "loss": "loss {loss}",
        "before": "untreated",
        "after": "treated",
        "line": "{name:<10} {line:<48} {first} -> {last}",
        "next": "next: gradmedic diagnose {folder}",
    },
    "zh": {
        "sick": "1. 病人：用 Python 手册训练的 transformer；学习率 {lr:g}，初始标准差 {std:g}",
        "treated": "2. 同一模型：学习率 {lr:g}，初始标准差 {std:g}，梯度裁剪到范数 {norm:g}",
        "loss": "损失 {loss}",
        "before": "治疗前",
        "after": "治疗后",
        "line": "{name:<7} {line:<48} {first} -> {last}",
        "next": "下一步：gradmedic diagnose {folder}",
    },
}


def perform(folder: Path, *, steps: int, lang: str, kept: bool) -> tuple[list[float], list[float]]:
    """Train the patient, show its check-up, train it treated, compare; return the losses of both.

    `kept` says whether the folder will still be there afterwards, so that a next command makes sense.
    """
    console = Console(stderr=True, highlight=False)
    words = _WORDS[lang]
    sick = _watched(console, SICK, folder / "sick", steps, lang, words["sick"])
    run, findings = examine(folder / "sick", lang)
    render_checkup(run, findings, lang=lang, console=console, name_lang=chosen_by_option(lang))
    treated = _watched(console, TREATED, folder / "treated", steps, lang, words["treated"])
    run, findings = examine(folder / "treated", lang)
    render_checkup(run, findings, lang=lang, console=console, name_lang=chosen_by_option(lang))
    for name, losses in ((words["before"], sick), (words["after"], treated)):
        line = sparkline(losses, WIDTH)
        first, last = _number(losses[0]), _number(losses[-1])
        console.print(words["line"].format(name=name, line=line, first=first, last=last), markup=False)
    if kept:
        option = f" --lang {lang}" if chosen_by_option(lang) else ""
        console.print(words["next"].format(folder=shortest(str(folder / "sick"))) + option, markup=False)
    return sick, treated


def sparkline(values: list[float], width: int) -> str:
    """Return one line of at most `width` marks on a logarithmic scale: an eighth block, or "×" for no number.

    Several values in one mark are shown by their last: what was there at the end of that stretch.

    Example:
        >>> sparkline([1.0, 10.0, 100.0, float("nan")], 4)
        '▁▄█×'
    """
    count = min(width, len(values))
    marks = [values[(index + 1) * len(values) // count - 1] for index in range(count)]
    logs = [math.log(max(value, 1e-12)) for value in marks if math.isfinite(value)]
    low, high = (min(logs), max(logs)) if logs else (0.0, 0.0)

    def mark(value: float) -> str:
        if not math.isfinite(value):
            return "×"
        share = (math.log(max(value, 1e-12)) - low) / (high - low) if high > low else 0.0
        return BARS[int(share * (len(BARS) - 1))]

    return "".join(map(mark, marks))


def _watched(console: Console, recipe: Recipe, record: Path, steps: int, lang: str, title: str) -> list[float]:
    console.print(title.format(lr=recipe.lr, std=recipe.init_std, norm=recipe.max_norm or 0.0), markup=False)
    columns = BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=steps)

        def progress(done: int, loss: float) -> None:
            bar.update(task, completed=done, description=_WORDS[lang]["loss"].format(loss=_number(loss)))

        losses = train(recipe, record, steps, progress)
        bar.update(task, total=len(losses))
    return losses


def _number(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "nan"
