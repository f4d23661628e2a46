"""The worked cases run as a user runs them, in short form, and find what docs/cases.md says that they find."""

import importlib.util
import re
from pathlib import Path

import matplotlib
import pytest

import gradmedic as gm
from gradmedic.record.recorder import Recorder

matplotlib.use("Agg")

ROOT = Path(__file__).parents[2]
CASES = ROOT / "examples" / "cases"
PAGE = ROOT / "docs" / "cases.md"

#: Case -> run -> codes at warning or above, in short runs of a few dozen steps; None: only a full run shows it.
FOUND = {
    "resnet_checkup": {"as_written": {"GM109"}, "mended": set()},
    "vit_heads": {"forgotten": {"GM301"}, "mended": set()},
    "transformer_policies": {"unclipped": {"GM401"}, "joint": set(), "by_kind": None, "by_kind_and_joint": set()},
    "attention_scale": {"not_divided": {"GM310"}, "divided": set()},
    "rnn_through_time": {"vanishing": {"GM307"}, "exploding": {"GM307"}, "mended": set()},
    "dlrm_sparse": {"as_written": {"GM103", "GM309"}, "mended": set()},
}


def drawing():
    """Return the command that redraws the page's pictures, as a module."""
    spec = importlib.util.spec_from_file_location("draw_cases", CASES / "draw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.mark.slow
@pytest.mark.timeout(900)  # ten seconds each where nothing else runs
@pytest.mark.parametrize("name", FOUND)
def test_a_case_finds_what_it_is_about(name, shared, tmp_path, capsys):
    """Run by the command that draws the page's pictures, which come out as well, each under its name on the page.

    All cases share one `--out`, and each has been run there before.
    """
    draw = drawing()
    for run in FOUND[name]:
        Recorder(shared / name / run, meta={}).close()
    module = draw.draw(name, shared, tmp_path / "page", quick=True)
    out = shared / name
    drawn = {picture.name for picture in (tmp_path / "page").iterdir()}
    assert drawn == draw.pictures_of(name).keys()
    assert len(drawn) >= 2
    printed = capsys.readouterr().out
    for run, codes in FOUND[name].items():
        opened = gm.open_run(out / run)
        assert opened.problems == []
        loud = {f.code for f in gm.diagnose(opened) if f.severity != "info"}
        assert codes is None or loud - {"GM112"} == codes, run  # GM112 measures time, which a busy machine takes
        pictures = list(out.glob(f"*-{run}.png"))
        assert len(pictures) >= 2
        assert all(picture.stat().st_size > 5000 for picture in pictures)
        assert f"{run}" in printed
    CHECKS.get(name, lambda module, folder: None)(module, out)


def shallow_heads_get_less(module, folder):
    forgotten = module.head_gradients(gm.open_run(folder / "forgotten"))
    mended = module.head_gradients(gm.open_run(folder / "mended"))
    assert len(forgotten) == len(mended) >= 4
    first, *_, last = forgotten.values()
    assert len(first) == 4
    assert max(first) < min(last) / 30
    first, *_, last = mended.values()
    assert min(first) > max(last) / 3


def limits_hold(module, folder):
    shares = {name: module.clipped_by_kind(gm.open_run(folder / name)) for name in ("unclipped", "by_kind")}
    assert all(share == 0 for share, _ in shares["unclipped"].values())
    assert set(shares["by_kind"]) == {"embedding", "attention", "feed-forward"}


def time_step_by_time_step(module, folder):
    factors = {}
    for name in ("vanishing", "exploding", "mended"):
        ax = gm.plot.through_time(folder / name)
        (line,) = [each for each in ax.get_lines() if each.get_label() == "rnn.weight_hh_l0"]
        times, norms = line.get_data()
        factors[name] = (norms[0] / norms[-1]) ** (1 / (times[-1] - times[0]))
    assert factors["vanishing"] < 0.7
    assert factors["exploding"] > 1.1
    assert 0.9 < factors["mended"] < 1.1


def rows_are_counted(module, folder):
    used = module.rows_used(gm.open_run(folder / "as_written"))
    assert used["tables.item"] == (16, 1000)
    assert module.rows_used(gm.open_run(folder / "mended"))["tables.item"][0] > 500


CHECKS = {
    "vit_heads": shallow_heads_get_less,
    "transformer_policies": limits_hold,
    "rnn_through_time": time_step_by_time_step,
    "dlrm_sparse": rows_are_counted,
}


def test_every_case_is_on_the_page_and_every_picture_is_there_and_small():
    page = PAGE.read_text("utf-8")
    assert {path.stem for path in CASES.glob("*.py")} - {"draw"} == set(FOUND) == set(drawing().PREFIXES)
    for name in FOUND:
        assert f"examples/cases/{name}.py" in page
    pictures = re.findall(r"\]\((images/cases/[^)]+)\)", page)
    assert len(set(pictures)) == len(pictures) >= 12
    assert {PAGE.parent / picture for picture in pictures} == set((PAGE.parent / "images" / "cases").iterdir())
    assert all((PAGE.parent / picture).stat().st_size < 80_000 for picture in pictures)
    drawn = [name for case in FOUND for name in drawing().pictures_of(case)]
    assert sorted(f"images/cases/{name}" for name in drawn) == sorted(pictures)


def test_the_command_draws_what_it_is_asked_for(tmp_path, monkeypatch, capsys):
    draw = drawing()
    asked = []
    monkeypatch.setattr(draw, "draw", lambda *given: asked.append(given))
    monkeypatch.setattr("sys.argv", ["draw.py", "vit_heads", "--quick", "--pictures", str(tmp_path)])
    draw.main()
    assert [(case, pictures, quick) for case, _, pictures, quick in asked] == [("vit_heads", tmp_path, True)]
    monkeypatch.setattr("sys.argv", ["draw.py"])
    draw.main()
    assert [(case, pictures, quick) for case, _, pictures, quick in asked[1:]] == [
        (case, PAGE.parent / "images" / "cases", False) for case in FOUND
    ]
    monkeypatch.setattr("sys.argv", ["draw.py", "no_such_case"])
    with pytest.raises(SystemExit):
        draw.main()
