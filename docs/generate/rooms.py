"""Which room of the package imports which, read from the source: what the architecture page draws."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

import gradmedic

#: The package as it is installed: a checkout's own where that is installed in place.
SOURCE = Path(gradmedic.__file__).parent

#: Room -> what it does, in a few words. Folders are rooms of their own; single files are gathered below.
JOBS: dict[str, str] = {
    "cli": "command line",
    "integrations": "trainers",
    "serve": "page, live",
    "top": "terminal, live",
    "compare": "two runs",
    "plot": "figures",
    "report": "page, check-up, notebook",
    "export": "Parquet, CSV, TensorBoard",
    "watching": "watch, Monitor, Clipper",
    "probing": "experiments on copies",
    "diagnosis": "rules, findings, words",
    "sinks": "where live numbers go",
    "advice": "what clipping would have done",
    "guard": "skip and stop",
    "init": "initialisation",
    "record": "the run folder",
    "probes": "looking, without touching",
    "clip": "transforms, and the one applier",
    "stats": "one pass over gradients",
    "testing": "models with one fault",
    "ground": "frame, names, schedule, torch_hooks, errors, types: every room may stand on it",
}
WATCHING = frozenset({"checks", "clipper", "ledger", "monitor", "run_meta", "settings", "transit", "watching"})


def room_of(module: str) -> str:
    """Return the room of a module, given with its dots and without the package's name.

    Example:
        >>> room_of("clip.trial.simulate"), room_of("monitor"), room_of("frame")
        ('advice', 'watching', 'ground')
    """
    parts = module.split(".")
    if parts[:2] in (["clip", "trial"], ["clip", "advice"]):
        return "advice"
    if parts[0] in JOBS and (SOURCE / parts[0]).is_dir():
        return parts[0]
    return "watching" if parts[0] in WATCHING else "ground"


def imports() -> dict[str, set[str]]:
    """Return room -> rooms that it imports when it is imported; what functions import later is left out."""
    found: dict[str, set[str]] = {room: set() for room in JOBS}
    for file in SOURCE.rglob("*.py"):
        module = ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if module in ("__init__", "__main__") or "child" in file.parts:
            continue
        for target in _targets(ast.parse(file.read_text(encoding="utf-8"))):
            if room_of(target) != room_of(module):
                found[room_of(module)].add(room_of(target))
    return found


def _targets(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of the package that a file imports at its top, without the package's name."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "gradmedic":
            yield from (alias.name for alias in node.names if not alias.name.startswith("__"))
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gradmedic."):
            named = str(node.module).removeprefix("gradmedic.")
            for alias in node.names:
                below = SOURCE.joinpath(*named.split("."), alias.name)
                yield f"{named}.{alias.name}" if below.is_dir() or below.with_suffix(".py").is_file() else named


def floors(graph: Mapping[str, set[str]]) -> dict[str, int]:
    """Return room -> its floor: 0 imports nothing, every other one more than the highest that it imports.

    Raises:
        graphlib.CycleError: rooms import each other.
    """
    found: dict[str, int] = {}
    for room in TopologicalSorter(graph).static_order():
        found[room] = 1 + max((found[other] for other in graph[room]), default=-1)
    return found


def direct(graph: Mapping[str, set[str]]) -> set[tuple[str, str]]:
    """Return the edges that do not follow from others."""
    reach = {room: _reach(room, graph) for room in graph}
    return {
        (room, other)
        for room, others in graph.items()
        for other in others
        if not any(other in reach[between] for between in others if between != other)
    }


def _reach(room: str, graph: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    waiting = [room]
    while waiting:
        for other in graph[waiting.pop()]:
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen
