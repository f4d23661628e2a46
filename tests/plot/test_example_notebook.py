"""The example notebook runs from top to bottom, and shows what it says."""

import re
from pathlib import Path

import matplotlib
import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from traitlets.config import Config

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


class Shell(InteractiveShell):
    """A notebook's shell in this process: a kernel of its own would import all over again, for ten seconds."""

    def enable_gui(self, gui=None):
        """No event loop is needed to draw into cells."""


@pytest.fixture
def shell(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    settings = Config()
    settings.HistoryManager.enabled = False
    drawing = matplotlib.get_backend()
    with matplotlib.rc_context():
        yield Shell.instance(config=settings)
    Shell.clear_instance()
    matplotlib.pyplot.switch_backend(drawing)


@pytest.mark.slow
@pytest.mark.timeout(400)  # twelve seconds where nothing else runs
def test_the_notebook_runs(shell, tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # kept clean: outputs are made by running it
    shown = {}
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        with capture_output() as told:
            ran = shell.run_cell(cell.source)
        ran.raise_error()
        assert told.stderr == ""
        outputs = [output.data for output in told.outputs]
        if ran.result is not None:
            outputs.append(shell.display_formatter.format(ran.result)[0])
        for output in outputs:
            for kind, data in output.items():
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
