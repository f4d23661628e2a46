"""Who watches a training already, when a trainer's callback is about to."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradmedic.monitor import Monitor

#: Monitors that trainers' callbacks have made.
made_here: weakref.WeakSet[Monitor] = weakref.WeakSet()


def run_watches() -> bool:
    """Whether `gradmedic run` watches this process, or will as soon as it trains."""
    session = sys.modules.get("gradmedic.cli.session")
    return session is not None and bool(session.watches_process())


def process_monitor() -> Monitor | None:
    """Return the monitor that watches all that this process trains; None if there is none."""
    return next((monitor for monitor, _, everything in _attached() if everything), None)


def hosting_monitor(model: Any) -> Monitor | None:
    """Return the open monitor that watches a model already, and that a callback is to join.

    Args:
        model: a module, or a mapping of names to modules, of which one is enough; None: any model.

    Returns:
        None where there is none; also where one was left behind by an earlier training of this model that an exception
        has ended: it is to be replaced.
    """
    for monitor, models, everything in _attached():
        if everything or (_shares(model, models) and not _is_left_behind(monitor)):
            return monitor
    return None


def left_behind(model: Any) -> list[Monitor]:
    """Return the open monitors of earlier trainings of a model that an exception has ended: they are to be replaced."""
    return [
        monitor
        for monitor, models, everything in _attached()
        if not everything and _shares(model, models) and _is_left_behind(monitor)
    ]


def _is_left_behind(monitor: Monitor) -> bool:
    return monitor in made_here and monitor.steps_seen > 0


def _shares(model: Any, models: list[Any]) -> bool:
    from gradmedic.names import unwrap

    wanted = list(model.values()) if isinstance(model, Mapping) else [] if model is None else [model]
    roots = {id(unwrap(each)) for each in wanted}
    return any(id(unwrap(each)) in roots for each in models)


def _attached() -> list[tuple[Monitor, list[Any], bool]]:
    """Return the open monitors, each with its models and whether it watches every model of the process."""
    from gradmedic import torch_hooks
    from gradmedic.probes.watcher import StepWatcher

    found: list[tuple[Monitor, list[Any], bool]] = []
    for listener in torch_hooks.attached():
        monitor: Any = getattr(listener, "keep_alive", None)
        if isinstance(listener, StepWatcher) and monitor is not None:
            found.append((monitor, list(listener.models.values()), listener._roster.discovering))
    return found
