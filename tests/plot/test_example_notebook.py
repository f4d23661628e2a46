"""The example notebook runs from top to bottom, and shows what it says."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


@pytest.mark.slow
@pytest.mark.timeout(400)  # a kernel starts, imports torch and trains: half a minute where nothing else runs
def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # kept clean: outputs are made by running it
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            assert output.get("name") != "stderr", output["text"]
            for kind, data in output.get("data", {}).items():
                shown.setdefault(kind, []).append(data)
    assert len(shown["image/png"]) == 4
    assert len(shown["image/gif"]) == 1
    html = shown["text/html"]
    assert len(html) == 4  # run, findings, frame, findings of the treated run
    assert "<svg" in html[0]
    assert re.search(r"GM\d{3}", html[1])
    assert "Nothing found" in html[3]
    assert not any("<script" in each for each in html)
    assert (tmp_path / "flow.gif").stat().st_size > 1000
