"""What the check-up says of the ranks of a job: who is missing, who stopped first, how noisy their gradients are."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from gradmedic.diagnosis.noise_scale import NoiseScale
from gradmedic.diagnosis.ranks import RankState, stopped_first
from gradmedic.diagnosis.wording import counted, number
from gradmedic.plain_text import plain

#: Without ranks that reduce their gradients there is no word to say of a noise scale.
_NO_MATTER = frozenset({"one_rank", "not_joined"})
#: So many ranks are named one by one.
SHOWN = 6

_WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "ranks": "ranks",
        "noise": "noise scale",
        "missing": "{n:!rank|ranks} {ranks} left no record",
        "silent": "rank {rank} stopped first: its record ends at step {step} and was not closed",
        "failed": "rank {rank} ended first, after step {step}: {reason}",
        "failed_early": "rank {rank} ended first, before its first step: {reason}",
        "open": "{n:!rank|ranks} {ranks} did not close their records",
        "counts": "steps made: {counts}",
        "count": "{steps} by rank {rank}",
        "range": "from {least} (rank {last}) to {most} (rank {first})",
        "value": "{ratio} global batches{examples}, from {n:sampled step|sampled steps}",
        "examples": " ({examples} rows)",
        "not_mean": "not available: the ranks' gradients are not reduced to their mean",
        "unresolved": "not resolved: larger than these batches can show, from {n:sampled step|sampled steps}",
        "same": "not available: all ranks have the same gradients",
        "not_measured": "not available: no gradients before the reduction (accumulate under no_sync())",
        "comma": ", ",
        "semicolon": "; ",
    },
    "zh": {
        "ranks": "rank",
        "noise": "噪声尺度",
        "missing": "rank {ranks} 没有留下记录",
        "silent": "rank {rank} 最先停止：其记录到第 {step} 步为止，且未关闭",
        "failed": "rank {rank} 最先结束，在第 {step} 步之后：{reason}",
        "failed_early": "rank {rank} 最先结束，在其第一步之前：{reason}",
        "open": "rank {ranks} 没有关闭记录",
        "counts": "步数：{counts}",
        "count": "rank {rank} 为 {steps}",
        "range": "从 {least}（rank {last}）到 {most}（rank {first}）",
        "value": "全局 batch 的 {ratio} 倍{examples}，来自 {n} 个采样步",
        "examples": "（{examples} 行）",
        "not_mean": "无法给出：各 rank 的梯度没有规约为平均值",
        "unresolved": "分辨不出：超出这些 batch 所能显示的范围，来自 {n} 个采样步",
        "same": "无法给出：各 rank 的梯度相同",
        "not_measured": "无法给出：没有规约之前的梯度（累积时请用 no_sync()）",
        "comma": "，",
        "semicolon": "；",
    },
}


def rank_lines(states: Sequence[RankState], noise: NoiseScale | None, lang: str) -> Iterator[tuple[str, str]]:
    """Yield (label, value); nothing for a job of one process.

    Args:
        states: of all ranks, as `rank_states` returns them.
        noise: the gradient noise scale; None where it was not asked for.
        lang: "en" or "zh".
    """
    if len(states) < 2:
        return
    words = _WORDS[lang]
    yield words["ranks"], words["semicolon"].join([str(len(states)), *_said(list(states), lang)])
    if noise is not None and noise.reason not in _NO_MATTER:
        yield words["noise"], _noise(noise, lang)


def _said(states: list[RankState], lang: str) -> Iterator[str]:
    words = _WORDS[lang]
    missing = [state for state in states if not state.steps and state.ended is None]
    if missing:
        yield _named(words["missing"], missing, lang)
    first = stopped_first(states)
    silent = [state for state in states if state.ended is None and state.steps and state is not first]
    if first is not None:
        key = "silent" if first.ended is None else "failed" if first.steps else "failed_early"
        step = "" if first.last_step is None else number(first.last_step)
        yield words[key].format(rank=first.rank, step=step, reason=plain(str(first.ended)))
    if silent and any(state.ended is not None for state in states):
        yield _named(words["open"], silent, lang)
    made = [state for state in states if state.steps]
    if first is None and len({state.steps for state in made}) > 1:
        yield words["counts"].format(counts=_counts(made, lang))


def _named(template: str, states: Sequence[RankState], lang: str) -> str:
    shown = _WORDS[lang]["comma"].join(str(state.rank) for state in states[:SHOWN])
    return template.format(n=counted(len(states)), ranks=shown + (" …" if len(states) > SHOWN else ""))


def _counts(states: Sequence[RankState], lang: str) -> str:
    words = _WORDS[lang]
    if len(states) <= SHOWN:
        return words["comma"].join(words["count"].format(rank=each.rank, steps=number(each.steps)) for each in states)
    least, most = (choose(states, key=lambda state: state.steps) for choose in (min, max))
    return words["range"].format(least=number(least.steps), last=least.rank, most=number(most.steps), first=most.rank)


def _noise(noise: NoiseScale, lang: str) -> str:
    words = _WORDS[lang]
    n = counted(len(noise.steps))
    if noise.reason:
        return words[noise.reason].format(n=n)
    error = "" if math.isnan(noise.error) else f" ± {noise.error:.2g}"
    rows = "" if noise.examples is None else words["examples"].format(examples=number(noise.examples))
    return words["value"].format(ratio=number(noise.ratio) + error, examples=rows, n=n)
