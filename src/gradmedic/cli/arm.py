"""Waits for the moment when a process begins to train, at no cost to one that never does.

Nothing may import torch before the script does: what the script puts into `os.environ` first (thread counts, devices,
allocators) would come too late. So the first stage is a finder on `sys.meta_path` that knows one name, "torch". When
torch has been imported, the second stage exchanges three functions that every training process calls early, the
constructor of optimizers and the two backward functions; the first call of any puts the originals back, and starts the
watching. Workers that import torch only to load data never get that far.

This file stands alone: every python process that a watched script starts loads it by its path
(`child/sitecustomize.py`), without the rest of the package.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from typing import Any

Start = Callable[[], None]


def when_training_begins(start: Start) -> None:
    """Call `start` once, just before this process makes its first optimizer or its first backward call.

    A later call replaces an earlier one whose process has not imported torch yet: `gradmedic run` inside a watched
    script watches for itself.
    """
    sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != _TorchFinder.__name__]
    if "torch" in sys.modules:
        _Trigger(start).install(sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _TorchFinder(start))


class _TorchFinder:
    """Finds "torch" the way the other finders do, and hears when it has been executed."""

    def __init__(self, start: Start) -> None:
        self._start = start

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return torch's spec, its loader prepared to install the trigger; None for every other name."""
        if name != "torch" or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None and hasattr(spec.loader, "__dict__"):
            self._listen(spec.loader)
        else:
            sys.meta_path.insert(0, self)
        return spec

    def _listen(self, loader: Any) -> None:
        """Shadow `exec_module` on this one loader for one call; no trace of it is left on torch's spec."""
        execute = loader.exec_module

        def exec_module(module: Any) -> None:
            del loader.exec_module
            try:
                execute(module)
            except BaseException:
                sys.meta_path.insert(0, self)
                raise
            _Trigger(self._start).install(module)

        loader.exec_module = exec_module


class _Trigger:
    """Exchanges the functions, and puts them back at the first call of any."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._places: list[tuple[Any, str, Any, Any]] = []
        self._wrapped_over: set[tuple[Any, str]] = set()
        # The first calls may come from several threads; re-entrant because starting may itself make an optimizer.
        self._lock = threading.RLock()

    def install(self, torch: Any) -> None:
        """Exchange the functions of an imported torch; without them (a broken torch) there is nothing to watch."""
        try:
            places = [(torch.optim.Optimizer, "__init__"), (torch.Tensor, "backward"), (torch.autograd, "backward")]
        except AttributeError:
            return
        for owner, name in places:
            original = getattr(owner, name)
            wrapper = self._wrap(owner, name, original)
            self._places.append((owner, name, original, wrapper))
            setattr(owner, name, wrapper)

    def _wrap(self, owner: Any, name: str, original: Any) -> Any:
        @functools.wraps(original)
        def first_call(*args: Any, **kwargs: Any) -> Any:
            self._fire()
            if (owner, name) in self._wrapped_over:  # the script has put its own function over ours, and calls us
                return original(*args, **kwargs)
            # Looked up again: `start` has put its own listener there, and this very call is to be heard by it.
            current = getattr(owner, name)
            return (original if current is first_call else current)(*args, **kwargs)

        return first_call

    def _fire(self) -> None:
        with self._lock:
            if not self._places:
                return
            places, self._places = self._places, []
            for owner, name, original, wrapper in places:
                # What the script has patched since stays as it is: its function goes on through ours to the original.
                if getattr(owner, name) is wrapper:
                    setattr(owner, name, original)
                else:
                    self._wrapped_over.add((owner, name))
            self._start()
