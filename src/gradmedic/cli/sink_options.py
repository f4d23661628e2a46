"""`--sink KIND[:TARGET]`: which sinks, and which one of a job's processes feeds them."""

from __future__ import annotations

import contextlib
import importlib
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gradmedic.errors import InputError


class _Kind(NamedTuple):
    target: str
    needed: bool
    make: Callable[[Any, str], Any]


def _prometheus(sinks: Any, target: str) -> Any:
    host, _, port = target.rpartition(":")
    if not target:
        return sinks.Prometheus()
    if not port.isdigit():
        raise InputError(f"--sink prometheus expects a port, or HOST:PORT, got {target!r}")
    return sinks.Prometheus(int(port), host.strip("[]") or "127.0.0.1")


def _webhook(sinks: Any, target: str) -> Any:
    if not target.startswith("$"):
        return sinks.Webhook(target)
    url = os.environ.get(target[1:].strip("{}"))
    if not url:
        raise InputError(
            f"--sink webhook: the environment has no variable {target[1:]}; set it to the webhook's address"
        )
    return sinks.Webhook(url)


_KINDS: Mapping[str, _Kind] = {
    "tensorboard": _Kind("DIR", True, lambda sinks, target: sinks.TensorBoard(target)),
    "wandb": _Kind("PROJECT", False, lambda sinks, target: sinks.Wandb(target or None)),
    "mlflow": _Kind("URI", False, lambda sinks, target: sinks.MLflow(target or None)),
    "prometheus": _Kind("[HOST:]PORT", False, _prometheus),
    "textfile": _Kind("FILE.prom", True, lambda sinks, target: sinks.PrometheusTextfile(target)),
    "opentelemetry": _Kind("", False, lambda sinks, target: sinks.OpenTelemetry()),
    "jsonl": _Kind("FILE|-", False, lambda sinks, target: sinks.JsonLines(target or "-")),
    "csv": _Kind("FILE", True, lambda sinks, target: sinks.Csv(target)),
    "webhook": _Kind("URL|$VARIABLE", True, _webhook),
}


def described() -> str:
    """Return the kinds with their targets, for help and for errors."""
    parts = []
    for name, kind in _KINDS.items():
        target = f":{kind.target}" if kind.target else ""
        parts.append(name + (target if kind.needed or not target else f"[{target}]"))
    return ", ".join(parts)


def make_sinks(words: Sequence[str]) -> list[Any]:
    """Return the sinks that `--sink` asks for, not opened yet; imports neither torch nor a library of theirs.

    Args:
        words: KIND or KIND:TARGET each, as in "tensorboard:runs/tb".

    Raises:
        InputError: an unknown kind, a target that is missing or is none. An address is not shown.
    """
    return [_make(word) for word in words]


def _make(word: str) -> Any:
    name, _, target = word.partition(":")
    kind = _KINDS.get(name)
    if kind is None:
        raise InputError(f"--sink expects one of {described()}; got {name!r}")
    if kind.needed and not target.strip():
        raise InputError(f"--sink {name} expects {name}:{kind.target}")
    if target and not kind.target:
        raise InputError(f"--sink {name} takes no target")
    return kind.make(importlib.import_module("gradmedic.sinks"), target)


def new_claim() -> str:
    """Make an empty file, and return its path: the process that removes it feeds the sinks.

    Removed rather than made by the one that claims it, so that nothing is left when a signal ends the training.

    Raises:
        InputError: there is no place for temporary files.
    """
    try:
        descriptor, path = tempfile.mkstemp(prefix=f"gradmedic-sinks-{os.getpid()}-")
    except OSError as error:
        why = error.strerror or type(error).__name__
        raise InputError(f"--sink needs a folder for temporary files ({why}); set TMPDIR to one") from None
    os.close(descriptor)
    return path


def claim(path: str | None) -> bool:
    """Return whether this process is the first of its job to train on rank 0, and so the one to feed the sinks.

    Two writers in one folder, at one port, would lose data.
    """
    from gradmedic.process_rank import rank_and_world

    if rank_and_world()[0] != 0:
        return False
    if path is None:
        return True
    try:
        os.unlink(path)
    except OSError:
        return False
    return True


def release(path: str | None) -> None:
    """Remove the file at the end of a run in which nothing trained."""
    if path is not None:
        with contextlib.suppress(OSError):
            os.unlink(path)
