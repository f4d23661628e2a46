"""Taking a run elsewhere: Parquet and CSV tables, TensorBoard event files.

`export_run` writes them; `gradmedic export` is its face. Tables are read segment by segment, so that a record much
larger than memory can be exported.
"""

from __future__ import annotations

from gradmedic.export.job import FORMATS as FORMATS
from gradmedic.export.job import Exported as Exported
from gradmedic.export.job import export_run as export_run

__all__ = ["FORMATS", "Exported", "export_run"]
