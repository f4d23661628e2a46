"""Parts that failed and were switched off while a run was recorded: what they do was not done after that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gradmedic.plain_text import plain

#: Ends of messages that say what the sentences here say themselves.
_TAILS = (
    "; training goes on",
    "; it is switched off, and gradients go untreated from here on",
    "; it is called no more",
)
_WORDS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "from": " from step {step} on",
        "rank": " on rank {rank}",
        "transform": "the transform was switched off{rank}{since}, gradients were not treated after that: {message}",
        "on_finding": "on_finding was called no more{rank}{since}: {message}",
        "rule": "{message}; it judged nothing after that{rank}{since}",
        "part": "{part} was switched off{rank}{since}, nothing was watched by it after that: {message}",
        "said": "{part}{rank}{since}: {message}",
    },
    "zh": {
        "from": "从第 {step} 步起",
        "rank": "在 rank {rank} 上",
        "transform": "变换{rank}{since}被关闭，此后梯度未经处理：{message}",
        "on_finding": "on_finding {rank}{since}不再被调用：{message}",
        "rule": "{message}；{rank}{since}不再判断",
        "part": "{part} {rank}{since}被关闭，此后不再监视：{message}",
        "said": "{part} {rank}{since}：{message}",
    },
}


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something of the recording itself that went wrong.

    Attributes:
        part: name of it, such as "transform" or "modules".
        message: what it raised, or what is the matter.
        step: the first step without it; None where the record does not say.
        rank: whose; None for a run of one process, and for the first rank.
        off: whether the part did nothing more.
    """

    part: str
    message: str
    step: int | None = None
    rank: int | None = None
    off: bool = True


def troubles_of(events: Iterable[Mapping[str, Any]]) -> list[Trouble]:
    """Return what went wrong in the recording of a run, each once, in order of time.

    Args:
        events: of the run.

    Example:
        >>> troubles_of([{"kind": "error", "part": "transform", "message": "Mine raised", "step": 3}])[0].step
        3
    """
    found: dict[Trouble, None] = {}
    for event in events:
        if event.get("kind") == "error":
            part, step, rank = str(event.get("part") or "gradmedic"), event.get("step"), event.get("rank")
            message = plain(str(event.get("message") or ""))
            for tail in _TAILS:
                message = message.removesuffix(tail)
            off = bool(event.get("off", part != "ranks"))
            known = step if isinstance(step, int) else None
            found.setdefault(Trouble(part, message, known, rank if isinstance(rank, int) and rank else None, off))
    return list(found)


def in_words(trouble: Trouble, lang: str) -> str:
    """Return a sentence without its full stop."""
    words = _WORDS[lang]
    key = "said" if not trouble.off else (trouble.part if trouble.part in words else "part")
    return words[key].format(
        part=trouble.part,
        message=trouble.message,
        since="" if trouble.step is None else words["from"].format(step=trouble.step),
        rank="" if trouble.rank is None else words["rank"].format(rank=trouble.rank),
    )
