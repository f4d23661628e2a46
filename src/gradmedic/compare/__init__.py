"""Two runs side by side: what was set differently, where they part, which layers differ, what each of them cost.

`compare_runs` does it; `gradmedic compare` is its face.
"""

from __future__ import annotations

from gradmedic.compare.comparison import Comparison as Comparison
from gradmedic.compare.job import compare_runs as compare_runs

__all__ = ["Comparison", "compare_runs"]
