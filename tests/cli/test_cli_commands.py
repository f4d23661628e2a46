"""The other commands, and what the command line refuses."""

from __future__ import annotations

import json
import re

import pytest

import gradmedic
from gradmedic.cli import COMMANDS, main
from gradmedic.cli.demo.corpus import Corpus, reference_text
from gradmedic.record import open_run


@pytest.mark.parametrize("name", COMMANDS)
def test_help_ends_with_an_example_that_parses(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert f"gradmedic {name}" in shown.partition("example")[2]


@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_option_is_answered_with_the_usage_of_its_own_command(name, capsys):
    needed = {"compare": ["a", "b"], "demo": [], "env": [], "run": ["x.py"]}.get(name, ["GM201"])
    with pytest.raises(SystemExit) as end:
        main([name, "--bogus", *needed])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.startswith(f"usage: gradmedic {name} ")
    assert f"gradmedic {name}: error:" in said


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert (end.value.code, capsys.readouterr().out) == (0, f"gradmedic {gradmedic.__version__}\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "COMMAND"),
        (["nonsense"], "there is no command 'nonsense'; there are: run, diagnose, "),
        (["rnu", "x.py"], "there is no command 'rnu'; did you mean 'run'?"),
        (["train.py"], "there is no command 'train.py'; did you mean: gradmedic run train.py"),
        (["run", "--fail-on", "notice", "x.py"], "one of info (or note), warning, error, critical, got 'notice'"),
        (["run"], "expected a script"),
        (["run", "-m"], "after -m"),
        (["run", "--steps", "0", "x.py"], "at least 1"),
        (["run", "--step", "5", "x.py"], "--step"),
        (["run", "--record", "a", "--no-record", "x.py"], "not allowed with"),
        (["run", "--limit", "x", "script.py"], "--limit expects"),
        (["run", "--clip", "nrom(1)", "script.py"], "there are: adagc"),
        (["run", "--clip", "norm(-1)", "script.py"], "norm: threshold"),
        (["run", "--clip", "breaker(0)", "script.py"], "breaker: limit"),
        (["run", "--modules", "a.*", "--modules", "off", "script.py"], "--modules"),
        (["run", "--record", "script.py", "script.py"], "is a file"),
        (["diagnose", "absent"], "absent"),
        (["diagnose", "script.py"], "script.py"),
        (["diagnose", "broken"], "broken"),
        (["explain", "GM999"], "GM999"),
    ],
)
def test_bad_input_is_a_clear_sentence_and_exit_code_2(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("raise AssertionError('was run')\n")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{not json")
    try:
        code = main(words)
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


def test_a_page_is_set_for_a_terminal_and_stays_markdown_elsewhere(capsys, monkeypatch):
    assert main(["explain", "GM201", "--lang", "en"]) == 0
    assert capsys.readouterr().out.startswith("# GM201 nonfinite\n\n## What it means")
    monkeypatch.setenv("FORCE_COLOR", "1")  # how rich is told that this is a terminal
    assert main(["explain", "GM201", "--lang", "en"]) == 0
    shown = capsys.readouterr().out
    assert "What it means" in shown
    assert "## " not in shown


def test_explain_one_and_all(capsys):
    assert main(["explain", "gm201", "--lang", "en"]) == 0
    assert "GM201" in capsys.readouterr().out
    assert main(["explain", "--lang", "zh"]) == 0
    listed = capsys.readouterr().out
    assert "GM101" in listed
    assert "GM412" in listed


def test_environment_is_described(capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert main(["env", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["gradmedic"] == gradmedic.__version__
    assert facts["variables"]["OMP_NUM_THREADS"] == "1"
    assert {"python", "torch", "numpy", "pyarrow", "native_kernel", "threads", "cuda_devices"} <= set(facts)
    assert main(["env"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in facts)


def test_the_demos_text_is_real_and_its_windows_line_up():
    text = reference_text()
    assert len(text) > 300_000
    assert "assignment" in text
    corpus = Corpus(context=8, batch=4, seed=3)
    inputs, targets = corpus.sample()
    assert inputs.shape == targets.shape == (4, 8)
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    line = "".join(corpus.alphabet[code] for code in inputs[0])
    assert line in text
    assert (Corpus(context=8, batch=4, seed=3).sample()[0] == inputs).all()


def test_the_demo_falls_ill_and_recovers(gm_fork, tmp_path):
    done = gm_fork("demo", "--fast", "--record", "demo")
    assert done.returncode == 0, done.stderr
    assert done.stdout == b""
    sick, treated = open_run(tmp_path / "demo" / "sick"), open_run(tmp_path / "demo" / "treated")
    losses = [run.series("loss") for run in (sick, treated)]
    assert not losses[0][-1] < 10 * losses[0][0]
    assert losses[1][-1] < 0.8 * losses[1][0]
    said = done.stderr.decode()
    assert re.search(r"GM[1-5]\d\d", said)
    assert "×" in said
    assert gm_fork("demo", "--fast", "--record", "demo").returncode == 2


def test_help_offers_nothing_that_is_refused(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    said = capsys.readouterr().out
    assert "--modules PATTERN" in said
    assert "PATTERN which" not in said
