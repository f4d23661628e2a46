"""Which run a command is asked about: a run folder, or the newest run in a folder of runs."""

from __future__ import annotations

from pathlib import Path

from gradmedic.cli.command import say
from gradmedic.top.newer import newest_run

_NEWEST = {
    "en": "gradmedic: {folder} holds {n} runs; this is the newest one, {run}",
    "zh": "gradmedic：{folder} 中有 {n} 个运行；这是其中最新的 {run}",
}


def run_folder(asked: str, lang: str = "en") -> str:
    """Return the run folder that is meant; where it is one of several, say which.

    Args:
        asked: a run folder, or a folder that holds some.
        lang: "en" or "zh".

    Returns:
        What was asked for, where it is a run or holds none: then the one who opens it says what is wrong.
    """
    found, others = newest_run(Path(asked))
    if found is None or found == Path(asked):
        return asked
    if others:
        say(_NEWEST.get(lang, _NEWEST["en"]).format(folder=asked, n=others + 1, run=found))
    return str(found)
