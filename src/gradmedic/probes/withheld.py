"""After a step that a loss scale is said to have spoilt: is there a place in the graph that no scale can mend?

A GradScaler withholds a step whose gradients are not finite and halves its scale, which is right when they have
overflowed. A derivative that is infinite by itself, like that of sqrt at 0, spoils the next step as well. The graph of
a step that was withheld is gone; that of the next backward pass is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gradmedic.probes.backward_origin import find_backward_origin
from gradmedic.probes.origin import Origin

#: A search reads saved values on the host; calibrating a scaler takes a few withheld steps in good health.
_MAX_SEARCHES = 8


class WithheldSteps:
    """Remembers that a step was withheld, and looks at the backward pass that follows."""

    def __init__(self) -> None:
        self._since: int | None = None
        self._searches = 0

    def withheld(self, step: int) -> None:
        """A GradScaler has withheld this step."""
        if self._since is None:
            self._since = step

    def made(self) -> None:
        """A step was made: the scale fits."""
        self._since = None

    def confirmed(self, skipped: bool) -> bool:
        """Whether what `look` has found spoilt its step, which was skipped then; there is no further search if so."""
        if skipped:
            self._searches = _MAX_SEARCHES
        return skipped

    def look(
        self, roots: Sequence[torch.Tensor], name_of: Callable[[torch.Tensor], tuple[str, str] | None]
    ) -> Origin | None:
        """Return the place in the graph behind the roots whose derivative is infinite, if a step was withheld before.

        Reads a few values on the host, at most eight times in a run; the scaler has just waited for the device as well.
        """
        if self._since is None or self._searches >= _MAX_SEARCHES:
            return None
        self._searches += 1
        found = find_backward_origin(roots, name_of)
        if found is not None:
            found.step = self._since
        return found
