"""How watching begins: `watch` for a model in anyone's loop, `watch_process` for an unmodified script."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from gradmedic.checks import (
    check_callables,
    check_groups,
    check_limits,
    check_modules,
    check_optimizers,
    check_order,
    check_overwrite,
    check_record,
    check_settings,
    check_trainable,
    check_transform,
)
from gradmedic.clip.base import Transform
from gradmedic.diagnosis import Finding
from gradmedic.monitor import Monitor
from gradmedic.names import unwrap
from gradmedic.probes.flow import check_flow
from gradmedic.roster import Roster
from gradmedic.schedule import StepSchedule
from gradmedic.settings import Settings
from gradmedic.types import Sink

#: Model -> its monitor, so that attaching anew replaces; both are held weakly.
_attached: weakref.WeakKeyDictionary[nn.Module, weakref.ref[Monitor]] = weakref.WeakKeyDictionary()
#: Monitor -> its run folder: what is replaced must have no writer left.
_folders: weakref.WeakKeyDictionary[Monitor, Path] = weakref.WeakKeyDictionary()


def watch(
    model: nn.Module | Mapping[str, nn.Module],
    optimizer: Any = None,
    *,
    record: str | Path | None = None,
    every: int | StepSchedule = 1,
    modules: Any = "auto",
    modules_every: int = 50,
    transform: Transform | None = None,
    flow: Mapping[str, Any] | None = None,
    limits: float | Mapping[str, float] | None = None,
    sinks: Sequence[Sink] = (),
    rules: Any = "default",
    budget: str | int = "256MB",
    overwrite: bool = False,
    on_finding: Callable[[Finding], None] | None = None,
    groups: Mapping[str, Any] | None = None,
    backend: str = "auto",
    strict: bool = False,
) -> Monitor:
    """Watch a model's training: measure, record and judge every optimizer step.

    Watching alone changes nothing: the weights stay bit-identical to an unwatched run. Attaching a second time to a
    model replaces the first attachment.

    Args:
        model: the module that is trained, or a mapping of names to modules (GAN: {"G": g, "D": d}).
        optimizer: an optimizer, a sequence or a mapping of them; None: every optimizer that steps a parameter of the
            model, found when it steps.
        record: run folder to create; None keeps the run in bounded memory. A folder that holds a run is refused,
            unless `overwrite` is set.
        every: which steps get the full per-tensor table: an int or a callable step -> bool. Scalars are kept for every
            step.
        modules: which modules are probed for activations and output gradients: "auto" for those without children, and
            attention; patterns over module names; or None. Only sampled steps have hooks on modules: the first three,
            every `modules_every`th, and those right after trouble.
        modules_every: steps between two samples, >= 1.
        transform: what to do to gradients at each step, before they are used (and before the script's own clip, if it
            has one): e.g. `gm.clip.norm(1.0)`, `gm.clip.zclip()`, `gm.guard.default()`; a number stands for `norm`.
        flow: mapping pattern -> limit: clips the gradient that flows back through the outputs of matching modules: a
            number is the largest norm of each output's gradient, `gm.clip.value(0.1)` limits its elements. The smallest
            factor of each step is in the frame's `logged`, as `flow.<module>`.
        limits: your own alarm: a pre-clip norm for the whole model, or a mapping pattern -> norm; exceeding it is
            finding GM412, said on stderr at once.
        sinks: where live numbers also go: `gm.sinks.*`, or objects of yours with `emit(frame)`,
            `emit_finding(finding)`, `close()`. Each works in a thread of its own, on rank 0, behind a bounded queue;
            one with `direct = True` is called in the training thread, on every rank, at the end of each step.
        rules: "default", or a sequence of codes and rule objects.
        budget: bound on the run folder's size, e.g. "256MB".
        overwrite: replace the run that the folder holds, for a loop or a notebook cell that is run again; other files
            in it stay. A monitor of this process that still writes to it is closed first.
        on_finding: called with each finding as soon as it is made.
        groups: mapping pattern -> process group, for pipeline stages and experts: tensors whose likes lie on the other
            ranks of the group, so that the model's norm is of all of them. A device mesh or a list of groups is joined
            over one after the other; None means a copy of what another rank counts (a tied weight on two stages). Give
            the same patterns in the same order on every rank.
        backend: "auto", "native", "torch" or "reference".
        strict: raise gradmedic's own errors instead of isolating them (for tests).

    Returns:
        A monitor; use it as a context manager, or call `close()`.

    Raises:
        InputError: not a module, an optimizer of another model, nothing trainable, an unknown pattern, an existing run.

    Example:
        >>> import torch, gradmedic as gm
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> with gm.watch(model, optimizer) as monitor:
        ...     model(torch.ones(4, 2)).sum().backward()
        ...     optimizer.step()
        >>> monitor.latest.step
        0
    """
    check_record(record)
    check_callables(on_finding, sinks)
    check_settings(rules=rules, strict=strict, every=every, backend=backend, budget=budget, modules_every=modules_every)
    check_overwrite(overwrite)
    check_order(model, optimizer)
    roster = Roster(model)
    check_trainable(roster)
    optimizers = check_optimizers(optimizer, roster)
    check_limits(limits, roster.models, roster)
    modules = check_modules(modules, roster.models)
    transform = check_transform(transform, optimizers, roster)
    declared = check_groups(groups, roster)
    places = check_flow(flow, roster.models) if flow else None
    if overwrite and record is not None:
        _close_writers_to(Path(record))
    monitor = Monitor(
        roster,
        optimizers,
        Settings(
            record,
            every,
            transform,
            places,
            modules,
            modules_every,
            limits,
            sinks,
            rules,
            budget,
            on_finding,
            backend,
            strict,
            overwrite=overwrite,
            groups=declared,
        ),
    )
    if record is not None:
        _folders[monitor] = Path(record).resolve()
    for each in roster.models.values():
        earlier = _attached.get(unwrap(each))
        if earlier is not None and (former := earlier()) is not None:
            former.close("attached anew")
        _attached[unwrap(each)] = weakref.ref(monitor)
    return monitor


def _close_writers_to(folder: Path) -> None:
    """Close the monitors that write to a folder, so that nothing of theirs comes after what replaces it."""
    for monitor in [each for each, place in list(_folders.items()) if place == folder.resolve()]:
        monitor.close("overwritten")
        _folders.pop(monitor, None)


def watch_process(
    *,
    record: str | Path | None,
    every: int | StepSchedule = 1,
    modules: Any = "auto",
    transform: Transform | None = None,
    limits: Any = None,
    stop_after: int | None = None,
    budget: str | int = "256MB",
    lang: str = "en",
    namespace: Callable[[], Mapping[str, Any]] | None = None,
    join: bool = False,
    on_finding: Callable[[Finding], None] | None = None,
    lazy: bool = True,
    overwrite: bool = False,
    strict: bool = False,
    sinks: Sequence[Sink] = (),
) -> Monitor:
    """Watch every optimizer of this process, for `gradmedic run`: models are found when they are trained.

    Args:
        record, every, transform, limits, budget, on_finding, strict, sinks: as for `watch`.
        modules: as for `watch`.
        stop_after: raise `StepLimit` (a SystemExit with code 0) after so many optimizer steps.
        lang: language of findings, "en" or "zh".
        namespace: returns the script's global variables, whose names models, optimizers and bare tensors get.
        join: write into a run folder that other processes write to as well.
        lazy: make the run folder at the first frame.
        overwrite: replace a run that the folder holds.

    Returns:
        A monitor.
    """
    settings = Settings(
        record, every, transform, limits=limits, budget=budget, on_finding=on_finding, strict=strict, lang=lang
    )
    settings.modules = check_modules(modules, None)
    settings.stop_after, settings.join, settings.overwrite = stop_after, join, overwrite
    settings.namespace, settings.sinks = namespace, sinks
    monitor = Monitor(Roster(None, namespace), None, settings)
    if not lazy:
        monitor.open_record()
    return monitor
