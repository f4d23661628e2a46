"""How a run ended: a run without findings that broke off has not shown that it is healthy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradmedic.diagnosis.ranks import RankState, stopped_first
from gradmedic.plain_text import abridged
from gradmedic.record.arrays import to_numpy
from gradmedic.report.text_words import WORDS

#: What an end event says (the part before a colon) to the words for it; all else is an end in order.
_EARLY = {"exception": "ended_by", "exit code": "ended_code", "interrupted": "interrupted", "stopped": "stopped"}


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended.

    Attributes:
        reason: as the record says it ("finished", "exception: ValueError"); None where the record was not closed,
            although its process is gone.
        rank: the rank that ended a job before its end; None for all, or the only one.
        last_step: index of the last recorded step; None without any.
    """

    reason: str | None
    rank: int | None = None
    last_step: int | None = None

    @property
    def early(self) -> bool:
        """Whether something cut the run short."""
        return self.reason is None or _kind(self.reason) is not None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-ready mapping."""
        return {"reason": self.reason, "early": self.early, "rank": self.rank, "last_step": self.last_step}


def ending_of(run: Any, states: Sequence[RankState]) -> RunEnding | None:
    """Return how a run ended; None where that is not known, as of one that still goes on.

    Args:
        run: anything with `events` and `frames()`.
        states: of all ranks, as `rank_states` returns them; empty for a run of one process.
    """
    return _of_job(states) if states else _of_process(run)


def ending_text(ending: RunEnding, lang: str) -> str:
    """Return a clause, such as "the run ended by ValueError after step 12".

    Args:
        ending: an early one.
        lang: "en" or "zh".
    """
    words = WORDS[lang]
    who = words["the_run"] if ending.rank is None else words["the_rank"].format(rank=ending.rank)
    after = words["before_first"] if ending.last_step is None else words["after_step"].format(step=ending.last_step)
    kind = None if ending.reason is None else _kind(ending.reason)
    what = "" if ending.reason is None or kind is None else ending.reason[len(kind) :].lstrip(": ")
    key = "broke_off" if ending.reason is None else _EARLY.get(kind or "", "ended")
    return words[key].format(who=who, after=after, what=abridged(what) or "?").strip()


def ending_sentence(ending: RunEnding | None, lang: str) -> str:
    """Return the clause as a sentence of its own; "" for a run that came to its end."""
    if ending is None or not ending.early:
        return ""
    clause = ending_text(ending, lang)
    capital = clause[0].upper() if lang == "en" else clause[0]
    return WORDS[lang]["sentence"].format(clause=capital + clause[1:])


def _kind(reason: str) -> str | None:
    return next((kind for kind in _EARLY if reason == kind or reason.startswith((f"{kind}:", f"{kind} "))), None)


def _of_job(states: Sequence[RankState]) -> RunEnding | None:
    # An end in order is called "finished" by some and otherwise by others; who stopped first only knows the former.
    plain = [replace(state, ended="finished") if _in_order(state) else state for state in states]
    first = stopped_first(plain)
    ended = [state for state in plain if state.ended is not None]
    silent = [state for state in plain if state.ended is None and state.steps]
    if first is None and ended and silent:
        first = min(silent, key=lambda state: (state.last_time or 0.0, state.rank))
    if first is not None:
        return RunEnding(first.ended, first.rank, first.last_step)
    if not ended:
        return None
    last = max((state.last_step for state in ended if state.last_step is not None), default=None)
    return RunEnding("finished", None, last)


def _in_order(state: RankState) -> bool:
    return state.ended is not None and _kind(state.ended) is None


def _of_process(run: Any) -> RunEnding | None:
    """Return the ending of the process of the last steps, by its own word, whatever a clock said."""
    table = getattr(run, "steps", None)
    if table is None:
        end = next((event for event in reversed(run.events) if event.get("kind") == "end"), None)
        last = None
        for frame in run.frames() if end is not None else ():
            last = frame.step
    elif table.num_rows:
        process = str(table["process"][-1].as_py())
        end = run.ends.get((int(table["rank"][-1].as_py()), process))
        last = int(to_numpy(table["step"])[-1])
        if end is None and getattr(run, "path", None) is not None and _is_gone(run, process):
            return RunEnding(None, None, last)
    else:
        end, last = next(reversed(run.ends.values()), None), None
    return None if end is None else RunEnding(str(end.get("reason") or ""), None, last)


def _is_gone(run: Any, process: str) -> bool:
    from gradmedic.top.process import is_gone

    return is_gone(run, process)
