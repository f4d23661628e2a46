"""One version; workflows and pages that name what there is; a wheel that holds what the package reads."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import gradmedic as gm

ROOT = Path(__file__).parents[2]
#: The package that is tested; it need not be that of a source tree.
PACKAGE = Path(gm.__file__).parent


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def project() -> dict:
    toml = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    return toml.loads(read("pyproject.toml"))


def test_the_version_stands_in_one_place():
    settings = project()
    assert "version" not in settings["project"]
    assert settings["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "gradmedic.__version__"}
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+|rc\d+)?", gm.__version__)
    sources = [file for file in PACKAGE.rglob("*.py") if f'"{gm.__version__}"' in file.read_text("utf-8")]
    assert sources == [PACKAGE / "__init__.py"]


def test_extras_are_known_where_they_are_named():
    """Whatever a message, a page or another extra tells people to install exists."""
    extras = project()["project"]["optional-dependencies"]
    named: set[str] = set()
    for file in [
        *PACKAGE.rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "pyproject.toml",
    ]:
        for found in re.findall(r"(?:gradmedic|\.)\[([a-z,]+)\]", file.read_text("utf-8")):
            named |= set(found.split(","))
    assert named <= set(extras), named - set(extras)


@pytest.mark.parametrize("name", ["ci.yml", "wheels.yml"])
def test_workflows_name_what_there_is(name):
    text = read(f".github/workflows/{name}")
    flow = yaml.safe_load(text)
    for job in flow["jobs"].values():
        assert "timeout-minutes" in job or job.get("environment"), job
        for step in job["steps"]:
            for target in re.findall(r"\bmake (\w+)", step.get("run", "")):
                assert re.search(rf"^{target}:", read("Makefile"), re.M), target
    for path in re.findall(r"\b(?:tests|src|docs)/[\w/.]+\w", text):
        inside = path.removeprefix("src/gradmedic/")
        assert list(ROOT.glob(f"{path}*") if inside == path else PACKAGE.glob(f"{inside}*")), path
    needs = [job.get("needs", []) for job in flow["jobs"].values()]
    needed = {name for each in needs for name in ([each] if isinstance(each, str) else each)}
    assert needed <= set(flow["jobs"])
    if name == "ci.yml":
        assert any("make test" in step.get("run", "") for job in flow["jobs"].values() for step in job["steps"])


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> set[str]:
    """Return the names in a wheel of the present tree, built without the kernel: that takes seconds."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        (tree / name).write_bytes((ROOT / name).read_bytes())
    (tree / "src").mkdir()
    for file in PACKAGE.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts and file.suffix not in (".so", ".pyd"):
            target = tree / "src" / file.relative_to(PACKAGE.parent)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "dist", "."]
    made = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=250)
    assert made.returncode == 0, made.stdout + made.stderr
    (built,) = (tree / "dist").glob("*.whl")
    assert built.name.startswith(f"gradmedic-{gm.__version__}-")
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def test_the_wheel_holds_every_file_that_the_package_reads(wheel):
    source = PACKAGE.parent
    left_out = {".so", ".pyd", ".pyc"}
    wanted = {
        file.relative_to(source).as_posix()
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix not in left_out
    }
    assert wanted <= wheel, sorted(wanted - wheel)
    assert not [name for name in wheel if name.startswith(("tests", "docs", "benchmarks"))]
    assert any(name.endswith("licenses/LICENSE") for name in wheel)
