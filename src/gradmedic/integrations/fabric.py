"""Lightning Fabric: a callback for `Fabric(callbacks=[…])`, whose loop is the script's own."""

from __future__ import annotations

from typing import Any

from gradmedic.integrations.callback import WatchingCallback, guarded


class GradMedicCallback(WatchingCallback):
    """Watches what a program trains with Fabric; see `WatchingCallback` for the arguments.

    Watching begins with the first `fabric.setup(model, …)`, of every model and optimizer of the process, and ends with
    `close()`, with the `with` block that it stands in, or with the program.

    Example:
        >>> from gradmedic.integrations.fabric import GradMedicCallback
        >>> fabric = Fabric(callbacks=[medic := GradMedicCallback("runs/exp1")])  # doctest: +SKIP
        >>> medic.close()  # doctest: +SKIP
    """

    _unended = None  # the loop is the script's: leaving the block is its end

    @guarded
    def on_after_setup(self, fabric: Any, module: Any) -> None:
        """Fabric has set a model up; further ones are seen as well."""
        if not self._attendance.is_open:
            self._attendance.begin(None)

    @guarded
    def log(self, **metrics: Any) -> None:
        """Add numbers of your own to the last step."""
        self._attendance.log(metrics)

    @guarded
    def should_stop(self) -> bool:
        """Whether a finding at or above `stop_on` was made; ask once a step, the loop is yours."""
        return self._attendance.should_stop()
