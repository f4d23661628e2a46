"""How long runs are, what they have to reach, and the learning rates that make it hard."""

from __future__ import annotations

from stability_training import Setting

#: Steps of a run; steps between two looks at the held-out accuracy.
STEPS, LOOK = 100, 10
#: Held-out accuracy to be reached.
TARGETS = {"digits": 0.40, "text": 0.24}
ADAMW, SGD, SGD_WARM, HEALTHY = "AdamW, no warm-up", "SGD, no warm-up", "SGD, warm-up 20", "healthy"
AGGRESSIVE = (ADAMW, SGD, SGD_WARM)
SETTINGS = {
    "digits": (
        Setting(ADAMW, "AdamW", 4e-3),
        Setting(SGD, "SGD", 0.05),
        Setting(SGD_WARM, "SGD", 0.07, 20),
        Setting(HEALTHY, "AdamW", 1e-3, 20, spoil=False),
    ),
    "text": (
        Setting(ADAMW, "AdamW", 8e-3),
        Setting(SGD, "SGD", 0.05),
        Setting(SGD_WARM, "SGD", 0.07, 20),
        Setting(HEALTHY, "AdamW", 1e-3, 20, spoil=False),
    ),
}
