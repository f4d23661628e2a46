"""What active probes have found, as one line of the check-up."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from gradmedic.diagnosis.wording import number

_LABEL: Mapping[str, str] = {"en": "probes", "zh": "探测"}
_JOIN: Mapping[str, str] = {"en": "; ", "zh": "；"}
_NEEDS: Mapping[str, str] = {"en": "not made; they need {reason}", "zh": "未能进行，需要：{reason}"}
#: In place of what probes of a loss without a value would say, where there is nothing else to say and where there is.
_NO_LOSS: Mapping[str, str] = {"en": "not possible: the loss is {loss}", "zh": "无法进行：损失为 {loss}"}
_NO_LOSS_OF_OTHERS: Mapping[str, str] = {
    "en": "the other probes were not possible: the loss is {loss}",
    "zh": "其余探测无法进行：损失为 {loss}",
}

#: Sentences by probe and verdict; a placeholder is a number of the probe's.
_SAID: Mapping[str, Mapping[str, str]] = {
    "en": {
        "line/descends": "the step lowers its batch's loss from {loss} to {loss_at_1}",
        "line/too_far": "a part of the step lowers its batch's loss of {loss}, the whole does not ({loss_at_1})",
        "line/too_short": "ten steps at once lower their batch's loss of {loss} by less than a thousandth",
        "line/ascends": "the step raises its batch's loss from {loss} to {loss_at_1}",
        "line/uncertain": "a step of any length changes its batch's loss of {loss} by chance only",
        "batch/sum": "the loss grows with the batch",
        "batch/mean": "the loss does not depend on the size of the batch",
        "batch/other": "the loss of a doubled batch is {ratio} times as large",
        "input/used": "with the inputs of other samples the loss goes from {loss} to {loss_of_others}",
        "input/ignored": "with the inputs of other samples the loss stays {loss}",
        "overfit/fits": "16 samples can be learned by heart (loss {loss} to {loss_fitted})",
        "overfit/partly": "16 samples can be learned in part (loss {loss} to {loss_fitted})",
        "overfit/does_not_fit": "16 samples cannot be learned by heart (loss {loss} to {loss_fitted})",
        "future/causal": "predictions do not depend on later inputs",
        "future/looks_ahead": "predictions depend on later inputs",
        "future/leak": "predictions depend on later inputs, which are the targets",
    },
    "zh": {
        "line/descends": "一步使其 batch 的损失从 {loss} 降到 {loss_at_1}",
        "line/too_far": "部分步长能降低其 batch 的损失 {loss}，整步则不能（{loss_at_1}）",
        "line/too_short": "十步合在一起使其 batch 的损失 {loss} 下降不到千分之一",
        "line/ascends": "一步使其 batch 的损失从 {loss} 升到 {loss_at_1}",
        "line/uncertain": "无论步长多少，其 batch 的损失 {loss} 只有偶然的变化",
        "batch/sum": "损失随 batch 增大",
        "batch/mean": "损失与 batch 大小无关",
        "batch/other": "batch 加倍后损失变为 {ratio} 倍",
        "input/used": "换成其他样本的输入后，损失从 {loss} 变为 {loss_of_others}",
        "input/ignored": "换成其他样本的输入后，损失仍为 {loss}",
        "overfit/fits": "能记住 16 个样本（损失从 {loss} 到 {loss_fitted}）",
        "overfit/partly": "只能部分记住 16 个样本（损失从 {loss} 到 {loss_fitted}）",
        "overfit/does_not_fit": "记不住 16 个样本（损失从 {loss} 到 {loss_fitted}）",
        "future/causal": "预测不依赖后面的输入",
        "future/looks_ahead": "预测依赖后面的输入",
        "future/leak": "预测依赖后面的输入，而那正是目标",
    },
}


def probe_line(events: Iterable[Mapping[str, Any]], lang: str) -> str:
    """Return what the last probe of each kind has found; "" where none was made.

    Args:
        events: of the run; those of kind "probe" count.
        lang: "en" or "zh".
    """
    last = {str(event.get("probe")): event for event in events if event.get("kind") == "probe"}
    without = {key: loss for key, event in last.items() if not math.isfinite(loss := _loss_of(event))}
    said = [text for key, event in last.items() if key not in without and (text := _sentence(event, lang))]
    if without:
        template = (_NO_LOSS_OF_OTHERS if said else _NO_LOSS)[lang]
        said.append(template.format(loss=number(next(iter(without.values())))))
    missing = last.get("all")
    if not said and missing is not None:
        said = [_NEEDS[lang].format(reason=missing.get("reason", ""))]
    return f"{_LABEL[lang]}: {_JOIN[lang].join(said)}" if said else ""


def _sentence(event: Mapping[str, Any], lang: str) -> str:
    template = _SAID[lang].get(f"{event.get('probe')}/{event.get('verdict')}", "")
    numbers = {key: number(float(value)) for key, value in (event.get("numbers") or {}).items()}
    return template.format_map(numbers)


def _loss_of(event: Mapping[str, Any]) -> float:
    return float((event.get("numbers") or {}).get("loss", 0.0))
