"""Makes the pictures of the README: the check-up of examples/nan_row.py, in English and Chinese.

Run from the project's root: `.venv/bin/python docs/images/make.py`.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from gradmedic.diagnosis import diagnose
from gradmedic.record import open_run
from gradmedic.report.text import render_checkup

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent.parent / "examples" / "nan_row.py"
NAMES = {"en": "checkup.svg", "zh": "checkup.zh.svg"}


def main() -> None:
    """Record one run and draw it in each language."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        record = Path("runs") / "exp1"
        command = [sys.executable, "-m", "gradmedic", "run", "--quiet", "--record", str(record), str(SCRIPT)]
        # One thread: on a busy machine several wait for each other longer than so small a step takes.
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        run = open_run(record)
        for lang, name in NAMES.items():
            console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor")
            console.print("[bold]$[/bold] gradmedic run examples/nan_row.py")
            render_checkup(run, diagnose(run, lang=lang), lang=lang, console=console)
            (HERE / name).write_text(_plain(console.export_svg(title="gradmedic")), encoding="utf-8")
        os.chdir(HERE)


def _plain(svg: str) -> str:
    """Use fonts that the reader has, download none, and let wide characters be as wide as they are."""
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->", "", svg)
    svg = re.sub(r' textLength="[^"]*"', "", svg)
    return svg.replace("Fira Code", "DejaVu Sans Mono, Noto Sans Mono CJK SC")


if __name__ == "__main__":
    main()
