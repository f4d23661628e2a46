"""A comparison as headed blocks of sentences and rows: what text, Markdown and HTML have in common."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gradmedic.compare.comparison import Comparison, Course, Difference, LayerDifference, Parting, Phase
from gradmedic.compare.words import WORDS
from gradmedic.diagnosis import wording
from gradmedic.diagnosis.finding import Finding

_LAYERS, _DIFFERENCES, _NAMES = 8, 24, 3
#: A median ratio within a tenth is no difference worth a line.
_SMALL_LOG2 = math.log2(1.1)


@dataclass(slots=True)
class Block:
    """A heading, sentences below it, and rows: a header and cells, the first of a row its label."""

    title: str
    sentences: list[str] = field(default_factory=list)
    header: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)


def sheet_of(comparison: Comparison, lang: str, *, whole: bool = False) -> list[Block]:
    """Return the blocks of a comparison, most important first.

    Args:
        comparison: what to show.
        lang: "en" or "zh".
        whole: every layer and difference, rather than as many as fit on a screen.
    """
    wording.messages(lang)
    return [
        _verdict(comparison, lang),
        *(_course(course, len(comparison.courses) > 1, lang) for course in comparison.courses),
        _findings(comparison, lang),
        _layers(comparison, lang, None if whole else _LAYERS),
        _differences(comparison.differences, lang, None if whole else _DIFFERENCES),
        _cost(comparison, lang),
    ]


def _verdict(comparison: Comparison, lang: str) -> Block:
    words = WORDS[lang]
    block = Block(words["title"].format(a=comparison.a, b=comparison.b))
    block.sentences.append(words["legend"].format(a=comparison.a, b=comparison.b))
    for which, problems in zip(("A", "B"), comparison.problems, strict=True):
        block.sentences += [words["problems"].format(which=which, problem=problem) for problem in problems[:2]]
    if not comparison.courses:
        block.sentences.append(words["no_optimizer"])
    several = len(comparison.courses) > 1
    for course in comparison.courses:
        label = f"{_pair(course)}: " if several else ""
        for sentence in _sentences(course, comparison, lang):
            block.sentences.append(label + sentence)
    for which, names in (("A", comparison.only_a), ("B", comparison.only_b)):
        if names:
            block.sentences.append(words["leftover"].format(which=which, names=", ".join(names)))
    return block


def _sentences(course: Course, comparison: Comparison, lang: str) -> Iterator[str]:
    words = WORDS[lang]
    first = course.first_difference
    if course.last_common is None:
        yield words["no_common"].format(a="A", b="B", n_a=course.steps[0], n_b=course.steps[1])
        return
    if first is None:
        key, longer = "identical" if course.identical else "only_modules", "A"
        if course.identical and course.steps[0] != course.steps[1]:
            key, longer = "identical_then", "A" if course.steps[0] > course.steps[1] else "B"
        yield words[key].format(step=course.last_common, longer=longer, n=max(course.steps[:2]) - course.steps[2])
        return
    how = words["in"].format(columns=", ".join(name for name, _, _ in first.columns[:4])) if first.columns else ""
    start = course.phases[0].first if course.phases else first.step
    key = "from_start" if first.step == start else "same_until"
    yield words[key].format(step=first.step, last=first.step - 1, how=how)
    if first.tensors and first.tensor_step is not None:
        yield words["tensors_first"].format(step=first.tensor_step, names=_names(first.tensors, lang))
    for which, alone in zip("AB", course.skipped_alone, strict=True):
        if alone:
            yield words["skipped_alone"].format(which=which, n=alone[0], step=alone[1])
    yield from _curves(course, comparison, lang)


def _curves(course: Course, comparison: Comparison, lang: str) -> Iterator[str]:
    words = WORDS[lang]
    tolerance = wording.share(comparison.tolerance)
    lost = dict(course.lost)
    parted = {parting.column: parting for parting in course.partings}
    for curve in ("loss", "grad_norm"):
        parting = parted.get(curve)
        if parting is None:
            yield words["stays"].format(curve=words[curve], tolerance=tolerance, n=comparison.sustained)
        else:
            yield _parting(parting, tolerance, comparison.sustained, lang)
        if curve in lost:
            yield words["lost"].format(curve=words[curve], step=lost[curve])


def _parting(parting: Parting, tolerance: str, sustained: int, lang: str) -> str:
    """Return where a curve parts; a value that is not finite is no matter of a tolerance, and its run is named."""
    sick = "" if math.isfinite(parting.a) and math.isfinite(parting.b) else "B" if math.isfinite(parting.a) else "A"
    return WORDS[lang]["parts_lost" if sick else "parts"].format(
        curve=WORDS[lang][parting.column],
        tolerance=tolerance,
        step=parting.step,
        n=sustained,
        a=wording.number(parting.a),
        b=wording.number(parting.b),
        sick=sick,
        well="A" if sick == "B" else "B",
        bad=wording.number(parting.b if sick == "B" else parting.a),
        good=wording.number(parting.a if sick == "B" else parting.b),
    )


def _course(course: Course, several: bool, lang: str) -> Block:
    words = WORDS[lang]
    title = words["course_of"].format(name=_pair(course)) if several else words["course"]
    block = Block(title, header=("", "A", "B"))
    block.rows.append((words["steps"], str(course.steps[0]), str(course.steps[1])))
    if not course.steps[0] == course.steps[1] == course.steps[2]:
        block.rows.append((words["common"], str(course.steps[2]), str(course.steps[2])))
    labels = ("early", "middle", "late") if len(course.phases) == 3 else ("all",)
    for curve, key in (("loss", "median_loss"), ("grad_norm", "median_norm")):
        for phase, label in zip(course.phases, labels, strict=False):
            block.rows.append(_phase_row(phase, curve, words[key], words[label]))
    for key, shares in (("clipped", course.clipped), ("skipped", course.skipped)):
        if any(shares):
            block.rows.append((words[key], *(wording.share(share) for share in shares)))
    return block


def _phase_row(phase: Phase, curve: str, label: str, when: str) -> tuple[str, ...]:
    values = phase.loss if curve == "loss" else phase.grad_norm
    name = label.format(phase=when.format(first=phase.first, last=phase.last))
    return (name, *(_median(value) for value in values))


def _median(value: float | None) -> str:
    if value is None:
        return "-"
    return wording.number(value) if math.isfinite(value) else "NaN/inf"


def _findings(comparison: Comparison, lang: str) -> Block:
    words = WORDS[lang]
    block = Block(words["findings"])
    if not (comparison.findings_a or comparison.findings_b):
        block.sentences.append(words["same_findings" if comparison.findings_both else "no_findings"])
    for which, findings in (("A", comparison.findings_a), ("B", comparison.findings_b)):
        block.rows += [_finding_row(words["only_in"].format(which=which), finding, lang) for finding in findings]
    for code, title, step_a, step_b in comparison.findings_both:
        block.rows.append((words["in_both"], f"{code} {title}", f"{step_a}, {step_b}"))
    if block.rows:
        block.header = ("", words["finding"], words["step"])
    return block


def _finding_row(label: str, finding: Finding, lang: str) -> tuple[str, ...]:
    severity = wording.messages(lang)["severity"][finding.severity]
    return label, f"{finding.code} {finding.title} ({severity})", str(finding.step)


def _layers(comparison: Comparison, lang: str, limit: int | None) -> Block:
    words = WORDS[lang]
    block = Block(words["layers"])
    apart = [layer for layer in comparison.layers if layer.distance > _SMALL_LOG2 or any(layer.nonfinite)]
    if not comparison.layers:
        block.sentences.append(words["no_layers"])
    elif not apart:
        block.sentences.append(words["layers_same"])
    if comparison.tensors[0] or comparison.tensors[1]:
        a, b, both = comparison.tensors
        block.sentences.append(words["only_tensors"].format(a=a, b=b, both=both))
    shown = apart if limit is None else apart[:limit]
    if shown:
        block.header = (words["tensor"], "A", "B", words["ratio"], words["nonfinite"])
        block.rows = [_layer_row(layer) for layer in shown]
        if not any(any(layer.nonfinite) for layer in shown):
            block.header, block.rows = block.header[:-1], [row[:-1] for row in block.rows]
        if len(apart) > len(shown):
            block.rows.append((words["more"].format(n=len(apart) - len(shown)), *([""] * (len(block.header) - 1))))
    return block


def _layer_row(layer: LayerDifference) -> tuple[str, ...]:
    shares = ", ".join(wording.share(share) for share in layer.nonfinite) if any(layer.nonfinite) else ""
    a, b = (_norm(value, share) for value, share in zip((layer.a, layer.b), layer.nonfinite, strict=True))
    return layer.name, a, b, ratio_text(layer.log2_ratio), shares


def _norm(value: float, nonfinite: float) -> str:
    """Return a median norm as text; without one, and without a gradient that was not finite, nothing was recorded."""
    return "-" if math.isnan(value) and not nonfinite else wording.number(value)


def ratio_text(log2_ratio: float) -> str:
    """Return a ratio that is given as its base-2 logarithm, "-" for NaN; large and small ones keep their exponent."""
    if math.isnan(log2_ratio):
        return "-"
    if math.isinf(log2_ratio):
        return "inf" if log2_ratio > 0 else "0"
    return wording.number(2.0**log2_ratio) if abs(log2_ratio) < 1000 else f"2^{log2_ratio:.0f}"


def _differences(listed: Sequence[Difference], lang: str, limit: int | None) -> Block:
    words = WORDS[lang]
    block = Block(words["differences"])
    if not listed:
        block.sentences.append(words["no_differences"])
        return block
    grouped: dict[tuple[str, str | None, str | None], list[str]] = {}
    for difference in listed:
        # Modules that changed alike are one line; so many layers of one model often do.
        alone = difference.key if difference.section != "model" else ""
        grouped.setdefault((f"{difference.section}\0{alone}", difference.a, difference.b), []).append(difference.key)
    block.header = (words["what"], "A", "B")
    rows = [
        (_label(key.partition("\0")[0], keys, lang), a or words["nothing"], b or words["nothing"])
        for (key, a, b), keys in grouped.items()
    ]
    block.rows = list(rows if limit is None else rows[:limit])
    if limit is not None and len(rows) > limit:
        block.rows.append((words["more"].format(n=len(rows) - limit), "", ""))
    return block


def _label(section: str, keys: list[str], lang: str) -> str:
    name = _names(keys, lang)
    if section == "optimizer":  # its keys begin with its name
        return name
    return f"{WORDS[lang][section]} {name}" if name else WORDS[lang][section]


def _cost(comparison: Comparison, lang: str) -> Block:
    words = WORDS[lang]
    block = Block(words["cost"], header=("", "A", "B"))
    a, b = comparison.costs
    for key, values, written in (
        ("step_time", (a.step_seconds, b.step_seconds), _seconds),
        ("overhead", (a.overhead, b.overhead), wording.share),
        ("seconds", (a.seconds, b.seconds), _seconds),
    ):
        if any(value is not None for value in values):
            texts = ("-" if value is None else written(value) for value in values)
            block.rows.append((words[key], *texts))
    return block if block.rows else Block(words["cost"], ["-"])


def _seconds(value: float) -> str:
    return f"{wording.number(value * 1e3)} ms" if value < 1 else f"{wording.number(value)} s"


def _names(names: Sequence[str], lang: str) -> str:
    return wording.names(list(names), lang) if any(names) else ""


def _pair(course: Course) -> str:
    return course.a if course.a == course.b else f"{course.a} / {course.b}"
