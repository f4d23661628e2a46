"""The parts of the command line that need no process of their own."""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.cli import arm, tracebacks
from gradmedic.cli.children import CHILD_FOLDER, OPTIONS_VARIABLE, leave_children, reach_children
from gradmedic.cli.command import default_language, reaches
from gradmedic.cli.demo.show import sparkline
from gradmedic.cli.folders import claim, default_folder, holds_run
from gradmedic.cli.options import RunOptions, parse_limits, parse_modules
from gradmedic.cli.program import Program, parse_program
from gradmedic.cli.run import RunCommand
from gradmedic.cli.session import Session, script_globals
from gradmedic.cli.transform_spec import parse_transform
from gradmedic.errors import InputError


@pytest.fixture(scope="module")
def parser():
    made = argparse.ArgumentParser()
    RunCommand().prepare_parser(made)
    return made


@pytest.mark.parametrize(
    ("words", "own"),
    [
        (["--steps", "5", "train.py", "--record", "x", "--help"], 2),
        (["--steps=5", "--quiet", "train.py", "--steps", "9"], 2),
        (["--quiet", "-m", "pkg.train", "-m", "x"], 1),
        (["-mpkg", "--quiet"], 0),
        (["--modules", "block.*", "-", "--"], 2),
        (["--limit", "-5", "a.py"], 2),
        (["--help"], 1),
        (["--record"], 1),
        (["--unknown", "a.py"], 1),
        ([], 0),
    ],
)
def test_everything_from_the_script_on_is_the_scripts(words, own, parser):
    assert RunCommand.split(words, parser) == (words[:own], words[own:])


def test_two_dashes_end_our_options(parser):
    assert RunCommand.split(["--quiet", "--", "--odd.py", "--"], parser) == (["--quiet"], ["--odd.py", "--"])


@given(st.lists(st.text(min_size=1)))
@settings(deadline=None)
def test_no_word_of_the_script_is_lost(parser, words):
    own, program = RunCommand.split(["--every", "2", "train.py", *words], parser)
    assert own == ["--every", "2"]
    assert program == ["train.py", *words]


def test_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.b.py").touch()
    (tmp_path / "app").mkdir()
    assert parse_program(["a.b.py", "-m"]) == Program("file", "a.b.py", ("-m",))
    assert parse_program(["a.b.py"]).name == "a.b"
    assert parse_program(["app/", "x"]) == Program("container", "app/", ("x",))
    assert parse_program(["app/"]).name == "app"
    assert parse_program(["-m", "p.q", "x"]) == parse_program(["-mp.q", "x"]) == Program("module", "p.q", ("x",))
    assert parse_program(["-"]) == Program("stdin", "-")
    for wrong in ([], ["-m"], ["absent.py"]):
        with pytest.raises(InputError):
            parse_program(wrong)


class Made:
    """A transform that remembers how it was made."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.args, self.kwargs = args, kwargs

    init = update = None


NAMES = {"norm": Made, "chain": Made, "layers": Made, "percentile": lambda *args: ("percentile", args)}


def test_transforms_are_made_from_literals_and_calls():
    assert parse_transform("1.5", NAMES).args == (1.5,)
    assert parse_transform("-2", NAMES).args == (-2,)
    assert parse_transform(" norm(2, per='tensor') ", NAMES).kwargs == {"per": "tensor"}
    assert parse_transform("gm.clip.norm(percentile(95, 100))", NAMES).args == (("percentile", (95, 100)),)
    assert parse_transform("norm(-1e-3)", NAMES).args == (-1e-3,)
    assert parse_transform("norm", NAMES).args == () == parse_transform("clip.norm", NAMES).args
    inner = parse_transform("chain(norm(1), clip.norm(None), [True])", NAMES).args
    assert [type(entry) for entry in inner] == [Made, Made, list]
    assert parse_transform("layers({'a.*': norm(1), 'b': 2.0}, default=3)", NAMES).args[0]["b"] == 2.0


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "norm(", "nrom", "nrom(1)", "'text'", "True", "percentile(95, 100)", "norm(open('x'))",
        "norm(__import__('os'))",
        "norm(*[1])", "norm(**{})", "norm((lambda: 1)())", "os.norm(1)", "norm.__class__(1)", "[norm(1)]", "norm(x)",
        "norm(1)(2)", "1; 2", "norm({**{}})", "norm(f'{1}')", "norm([i for i in (1,)])", "1 if 1 else 2",
    ],
)  # fmt: skip
def test_anything_else_is_refused_with_the_names(spec):
    with pytest.raises(InputError, match=r"there are: chain, layers, norm, percentile"):
        parse_transform(spec, NAMES)


def test_slips_get_a_hint():
    with pytest.raises(InputError, match="no transform 'nrom', did you mean norm"):
        parse_transform("nrom(1)", NAMES)
    with pytest.raises(InputError, match=r"expected a name in quotes, as in \{'Linear'"):
        parse_transform("layers({Linear: 1.0})", NAMES)


def test_what_a_transform_refuses_is_an_input_error():
    def refuses(value: float) -> None:
        raise ValueError(f"max_norm must be positive, got {value}")

    with pytest.raises(InputError, match="must be positive, got -1"):
        parse_transform("norm(-1)", {"norm": refuses})


def test_limits_and_modules():
    assert parse_limits(["encoder.*=5", "a=b=1e3"]) == {"encoder.*": 5.0, "a=b": 1000.0}
    assert parse_limits(["10"]) == {"": 10.0}
    for wrong in (["x"], ["a="], ["-1"], ["a=nan"], ["inf"], ["0"], ["1", "a=2"]):
        with pytest.raises(InputError):
            parse_limits(wrong)
    assert parse_modules([]) == parse_modules(["auto"]) == "auto"
    assert parse_modules(["off"]) is None
    assert parse_modules(["a.*", "b"]) == ["a.*", "b"]
    with pytest.raises(InputError):
        parse_modules(["a", "off"])


def test_options_travel_as_json():
    options = RunOptions(record="/x", steps=3, limits={"": 1.0}, modules=["a"], clip="1.0", lang="zh")
    assert RunOptions.from_json(options.to_json()) == options
    later = json.dumps({**json.loads(options.to_json()), "of_a_later_version": 1})
    assert RunOptions.from_json(later) == options


def test_environment_of_children_is_restored():
    for before in ({}, {"PYTHONPATH": "/a:/b"}):
        env = dict(before)
        reach_children(RunOptions(record="/x", quiet=False), env)
        reach_children(RunOptions(record="/y"), env)
        assert (
            env["PYTHONPATH"].split(":")
            == [CHILD_FOLDER, *before.get("PYTHONPATH", "").split(":")][: len(before) * 2 + 1]
        )
        child = RunOptions.from_json(env[OPTIONS_VARIABLE])
        assert (child.record, child.quiet) == ("/y", True)
        leave_children(env)
        assert env == before
    env = {}
    reach_children(RunOptions(record=None), env)
    assert env == {}


def test_default_folders_do_not_meet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = default_folder("train", {}, now=0.0)
    assert first.parent.name == "runs"
    assert first.name.startswith("train-19")
    first.mkdir(parents=True)
    assert default_folder("train", {}, now=0.0) not in (first, default_folder("other", {}, now=0.0))
    assert default_folder("x/../y", {}).parent.name == "runs"
    assert str(default_folder("train", {"GRADMEDIC_RUN_DIR": "/there"})) == "/there"


def test_ranks_agree_on_a_folder_and_jobs_do_not_share_one():
    job = {"WORLD_SIZE": "2", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none"}
    folders = {default_folder("train", {**job, "RANK": str(rank)}, now=float(rank * 100)) for rank in range(2)}
    assert len(folders) == 1
    assert default_folder("train", {**job, "MASTER_PORT": "1"}) not in folders
    assert default_folder("train", {**job, "TORCHELASTIC_RUN_ID": "exp7"}).name == "train-exp7-29500"


def test_a_folder_is_claimed_once_and_only_records_are_removed(tmp_path):
    folder = tmp_path / "a" / "b"
    claim(folder, overwrite=False)
    assert not folder.exists()
    folder.mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    claim(folder, overwrite=False)
    for name in ("run.json", "steps-0-ab12.arrows", "events-0-ab12.jsonl"):
        (folder / name).touch()
    assert holds_run(folder)
    with pytest.raises(InputError, match="already holds a run"):
        claim(folder, overwrite=False)
    claim(folder, overwrite=True)
    assert [entry.name for entry in folder.iterdir()] == ["notes.txt"]
    with pytest.raises(InputError, match="is a file"):
        claim(folder / "notes.txt", overwrite=True)
    with pytest.raises(InputError, match=r"notes\.txt is not a folder"):
        claim(folder / "notes.txt" / "x", overwrite=True)


def test_language(monkeypatch):
    for name in ("GRADMEDIC_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    assert default_language() == "en"
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert default_language() == "zh"
    monkeypatch.setenv("LC_ALL", "de_DE")
    assert default_language() == "en"
    monkeypatch.setenv("GRADMEDIC_LANG", "zh")
    assert default_language() == "zh"


def test_fail_on():
    found = [types.SimpleNamespace(severity=severity, folded=()) for severity in ("info", "error")]
    assert [reaches(found, bar) for bar in ("info", "warning", "error", "critical", None)] == [
        True,
        True,
        True,
        False,
        False,
    ]
    assert not reaches([], "info")


def ours(function_source: str) -> types.FunctionType:
    """Compile a function as if it were in a file of the package."""
    space: dict[str, types.FunctionType] = {}
    exec(compile(function_source, tracebacks._PACKAGE + "hooks.py", "exec"), space)
    return space["f"]


def names(error: BaseException) -> list[str]:
    found, traceback = [], error.__traceback__
    while traceback is not None:
        found.append(traceback.tb_frame.f_code.co_name)
        traceback = traceback.tb_next
    return found


def test_our_frames_are_taken_out_everywhere():
    call = ours("def f(g): return g()")
    wrap = ours("def f(g):\n    try: g()\n    except Exception as e: raise ValueError('wrapped') from e")

    def fails():
        raise KeyError("deep")

    def between():
        call(fails)

    def outermost():
        try:
            wrap(between)
        except ValueError as error:
            error.exceptions = (RuntimeError(),)
            raise OSError from error

    with pytest.raises(OSError) as caught:  # noqa: PT011
        outermost()
    error = caught.value
    tracebacks.clean(error)
    assert names(error)[-1] == "outermost"
    assert names(error.__cause__) == ["outermost"]
    assert names(error.__cause__.__cause__) == ["between", "fails"]
    line = error.__cause__.__cause__.__traceback__.tb_next.tb_lineno
    assert line == fails.__code__.co_firstlineno + 1


def test_an_exception_that_is_its_own_context_is_cleaned():
    first, second = ValueError(), KeyError()
    first.__context__, second.__context__ = second, first
    assert tracebacks.clean(first) is first


def test_watching_begins_at_the_first_sign_of_training():
    before = torch.optim.Optimizer.__init__, torch.Tensor.backward, torch.autograd.backward
    for sign in ("optimizer", "tensor", "function", "threads"):
        calls: list[str] = []
        weight = torch.ones(2, requires_grad=True)
        arm.when_training_begins(lambda calls=calls: calls.append("start"))
        (weight * 2).sum().item()
        assert not calls
        if sign == "optimizer":
            torch.optim.SGD([weight], lr=0.1)
        elif sign == "tensor":
            weight.sum().backward()
        elif sign == "function":
            torch.autograd.backward([weight.sum()])
        else:
            threads = [threading.Thread(target=lambda: torch.ones(1, requires_grad=True).backward()) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert calls == ["start"]
        assert (torch.optim.Optimizer.__init__, torch.Tensor.backward, torch.autograd.backward) == before


def test_the_first_backward_is_heard_by_what_it_starts():
    original = torch.Tensor.backward
    heard = []

    def start():
        torch.Tensor.backward = lambda self, *args: (heard.append("backward"), original(self, *args))

    arm.when_training_begins(start)
    try:
        torch.ones((), requires_grad=True).backward()
    finally:
        torch.Tensor.backward = original
    assert heard == ["backward"]


def test_a_torch_that_cannot_be_imported_leaves_the_script_as_it_was(tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("raise ImportError('broken')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name == "torch" or name.startswith("torch.")}
    try:
        arm.when_training_begins(lambda: None)
        for _ in range(2):
            with pytest.raises(ImportError, match="broken"):
                __import__("torch")
        assert [type(finder).__name__ for finder in sys.meta_path].count("_TorchFinder") == 1
    finally:
        sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "_TorchFinder"]
        sys.modules.update(kept)


def test_names_come_from_the_program(monkeypatch):
    program = types.ModuleType("__main__")
    program.model = object()
    monkeypatch.setitem(sys.modules, "__main__", program)
    assert script_globals()["model"] is program.model


def test_a_session_that_cannot_watch_says_so_and_goes_on(monkeypatch, capsys):
    def broken(*_: object) -> None:
        raise RuntimeError("no monitor today")

    monkeypatch.setattr("gradmedic.cli.session._watch", broken)
    session = Session(RunOptions())
    session.start()
    session.close()
    assert "no monitor today" in capsys.readouterr().err
    assert not session.trained


def test_sparkline():
    assert sparkline([1.0, 10.0, 100.0, math.nan], 4) == "▁▄█×"
    assert sparkline([2.0, 2.0], 8) == "▁▁"
    assert len(sparkline([float(n + 1) for n in range(150)], 48)) == 48
    assert sparkline([math.inf] * 3, 2) == "××"
