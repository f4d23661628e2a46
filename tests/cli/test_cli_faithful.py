"""`gradmedic run` against python itself: the same bytes on stdout and stderr, the same exit code."""

from __future__ import annotations

import py_compile
import re
import subprocess
import sys
import zipfile

import pytest

ATTRIBUTES = """
import sys
mine = dict(vars())
del mine["sys"], mine["__builtins__"]
print(sys.argv, sys.path, sys.orig_argv, sys.flags)
print({key: getattr(value, "__name__", value) for key, value in mine.items() if key not in ("__loader__", "__spec__")})
print(type(__loader__).__name__, getattr(__loader__, "name", None), getattr(__loader__, "path", None))
print(__spec__ and (__spec__.name, __spec__.origin, __spec__.parent), type(__builtins__).__name__)
print(sys.modules["__main__"].__dict__ is globals(), "torch" in sys.modules)
"""

#: What a script may do to itself and to its process; every one is run by both.
SCRIPTS: dict[str, str] = {
    "attributes": ATTRIBUTES,
    "exit number": "import sys; print('a'); sys.exit(3)",
    "exit text": "import sys; sys.exit('gone: \\u00e9')",
    "exit object": "raise SystemExit(['x', 1])",
    "exit none": "import sys; sys.exit()",
    "exit bool": "import sys; sys.exit(True)",
    "exit negative": "import sys; sys.exit(-1)",
    "exit at once": "import os; print('lost', end=''); os._exit(4)",
    "chained": """
def inner():
    raise KeyError("cause")
def outer():
    try:
        inner()
    except KeyError as error:
        raise ValueError("effect") from error
try:
    outer()
except ValueError:
    [1][2]
""",
    "suppressed context": "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise OSError(2, 'no') from None\n",
    "syntax error": "x = 1\nif x\n    pass\n",
    "indentation": "def f():\nreturn 1\n",
    "own excepthook": """
import sys
def hook(kind, error, traceback):
    print("hook", kind.__name__, error, traceback.tb_frame.f_code.co_name, traceback.tb_next)
sys.excepthook = hook
raise ValueError("x")
""",
    "failing excepthook": """
import sys
def hook(*ignored):
    raise RuntimeError("hook")
sys.excepthook = hook
raise ValueError("x")
""",
    "genuine excepthook": "import sys; print(sys.excepthook is sys.__excepthook__)",
    "interrupt": """
import os, signal
print('x', flush=True)
os.kill(os.getpid(), signal.SIGINT)
for _ in range(10**9): pass
""",
    "terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\n",
    "atexit": "import atexit\natexit.register(print, 'at exit')\nprint('end')\nraise SystemExit(7)\n",
    "failing atexit": "import atexit\natexit.register(lambda: 1 / 0)\nprint('end')\n",
    "thread": """
import threading
t = threading.Thread(target=lambda: 1 / 0, name='worker'); t.start(); t.join(); print('on')
""",
    "exit in thread": """
import sys, threading
t = threading.Thread(target=sys.exit, args=(5,)); t.start(); t.join(); print('on')
""",
    "late thread": """
import threading, time
threading.Thread(target=lambda: (time.sleep(0.3), print("late"))).start()
print("main ends")
""",
    "idle executor": """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
print(pool.submit(pow, 2, 5).result())
""",
    "stdin": "import sys\nprint(input(), sys.stdin.read())\n",
    "bytes": "import os, sys\nos.write(1, b'\\xff\\x00')\nsys.stdout.buffer.write(b'\\xfe\\r\\nno newline')\n",
    "closed stdout": "import sys\nprint('x')\nsys.stdout.close()\n",
    "replaced stderr": "import io, sys\nsys.stderr = io.StringIO()\nraise ValueError('unseen')\n",
    "pickle": """
import copy, pickle
class Thing:
    def __init__(self): self.x = 1
thing = pickle.loads(pickle.dumps(Thing()))
print(type(thing) is Thing, Thing.__module__, copy.deepcopy(thing).x, pickle.dumps(Thing))
""",
    "spawn": """
import multiprocessing as mp
import sys
def work(queue): queue.put((__name__, sys.argv, sys.path[:1]))
class Box:
    pass
if __name__ == "__main__":
    context = mp.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=work, args=(queue,))
    process.start()
    print(queue.get())
    process.join()
    print(process.exitcode)
""",
    "forked child": """
import os
print("before", flush=True)
if os.fork() == 0:
    print("child")
    raise SystemExit(5)
print(os.waitstatus_to_exitcode(os.wait()[1]))
""",
    "source": "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f), inspect.getfile(f))\n",
    "warning": """
import warnings
def f():
    warnings.warn('careful', stacklevel=2)
f()
f()
warnings.warn('x', DeprecationWarning)
""",
    "main guard": "print(__name__)\nif __name__ == '__main__':\n    print('guarded')\n",
    "annotations": "x: int = 1\nprint(__annotations__)\n" if sys.version_info < (3, 14) else "x: int = 1\n",
    "future": "from __future__ import annotations\ndef f(x: nothing): pass\nprint(f.__annotations__)\n",
    "no future": "def f(x: int): pass\nprint(f.__annotations__ if hasattr(f, '__annotations__') else 0)\n",
    "finalizer": "class A:\n    def __del__(self): print('finalized')\na = A()\n",
    "subprocess": """
import subprocess, sys
code = "import sys; print(sys.path, sys.argv, 'gradmedic' in sys.modules, 'torch' in sys.modules)"
print(subprocess.run([sys.executable, "-c", code, "x"], capture_output=True, text=True))
""",
}
if sys.version_info >= (3, 11):
    SCRIPTS["exception group"] = """
def one(): raise ValueError(1)
errors = []
for number in range(2):
    try:
        one()
    except ValueError as error:
        errors.append(error)
raise ExceptionGroup("both", errors)
"""

#: Those that see how their process was started have one that was started by itself; the others a fork of one that has
#: imported the command line.
BY_ITSELF = {"attributes", "chained", "interrupt", "atexit", "late thread", "spawn", "forked child", "subprocess"}


def assert_same(ours: subprocess.CompletedProcess[bytes], theirs: subprocess.CompletedProcess[bytes]) -> None:
    assert ours.stdout == theirs.stdout
    address = re.compile(rb"0x[0-9a-f]{6,}")
    assert address.sub(b"0x", ours.stderr) == address.sub(b"0x", theirs.stderr)
    assert ours.returncode == theirs.returncode


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_is_run_as_python_runs_it(name, gm, gm_bare, python, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPTS[name], encoding="utf-8")
    words = ["script.py", "--record", "x", "--help", "-m", "--", "-"]
    theirs = python(*words, stdin=b"first\nrest\n")
    ours = (gm if name in BY_ITSELF else gm_bare)("run", "--quiet", *words, stdin=b"first\nrest\n")
    assert_same(ours, theirs)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "words", [["-m", "pkg", "a"], ["-m", "pkg.part", "--steps", "2"], ["-m", "missing"], ["-m", "bad"]]
)
def test_module(words, gm, python, tmp_path):
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("print('init', __name__)\n")
    (package / "__main__.py").write_text(ATTRIBUTES)
    (package / "part.py").write_text("from . import __name__ as above\nimport sys\nprint(above, sys.argv)\n[][0]\n")
    (tmp_path / "bad.py").write_text("import absent\n")
    assert_same(gm("run", "--quiet", *words), python(*words))


def test_folder_zip_bytecode_and_link(gm, python, tmp_path):
    folder = tmp_path / "app"
    folder.mkdir()
    (folder / "__main__.py").write_text(ATTRIBUTES + "import helper\n")
    (folder / "helper.py").write_text("print('helper', __file__)\n1 / 0\n")
    with zipfile.ZipFile(tmp_path / "app.zip", "w") as archive:
        archive.write(folder / "__main__.py", "__main__.py")
        archive.writestr("helper.py", "print('zipped')\n")
    py_compile.compile(str(folder / "helper.py"), cfile=str(tmp_path / "compiled.pyc"))
    (tmp_path / "link.py").symlink_to(folder / "__main__.py")
    (tmp_path / "empty").mkdir()
    python("app")  # writes the bytecode that the next runs find
    for target in ("app", "app.zip", "compiled.pyc", "link.py", str(folder / "__main__.py"), "empty"):
        assert_same(gm("run", "--quiet", target, "x"), python(target, "x"))


@pytest.mark.parametrize(
    "source",
    [
        b"# -*- coding: latin-1 -*-\nprint(ascii('\xe9'))\n",
        b"\xef\xbb\xbfprint(ascii('\xc3\xa9'))\r\nraise ValueError('\xc3\xa9')\r\n",
    ],
)
def test_encodings(source, gm_bare, python, tmp_path):
    (tmp_path / "script.py").write_bytes(source)
    assert_same(gm_bare("run", "--quiet", "script.py"), python("script.py"))


@pytest.mark.parametrize("source", [b"print('\xe9')\n", b"# -*- coding: nonsense -*-\nprint(1)\n"])
def test_a_source_that_cannot_be_decoded_is_a_syntax_error(source, gm_bare, python, tmp_path):
    # Python words these errors of a file differently from those of the same bytes in memory.
    (tmp_path / "script.py").write_bytes(source)
    ours, theirs = gm_bare("run", "--quiet", "script.py"), python("script.py")
    assert ours.returncode == theirs.returncode == 1
    assert b"SyntaxError: " in theirs.stderr
    assert b"SyntaxError: " in ours.stderr
    assert b"gradmedic" not in ours.stderr


def test_program_from_stdin(gm, python):
    assert_same(gm("run", "--quiet", "-", "x", stdin=ATTRIBUTES.encode()), python("-", "x", stdin=ATTRIBUTES.encode()))


def test_interpreter_flags_reach_the_script(gm, python, tmp_path):
    (tmp_path / "script.py").write_text(ATTRIBUTES + "import warnings\nassert 0, 'not compiled'\nwarnings.warn('w')\n")
    flags = ["-O", "-W", "error::UserWarning", "-B"]
    assert_same(python(*flags, "-m", "gradmedic", "run", "--quiet", "script.py"), python(*flags, "script.py"))


def test_missing_script_ends_with_pythons_code_and_words(gm_bare, python):
    ours, theirs = gm_bare("run", "absent.py"), python("absent.py")
    assert ours.returncode == theirs.returncode == 2
    assert ours.stderr.partition(b": ")[2] == theirs.stderr.partition(b": ")[2]


def test_a_hidden_sitecustomize_still_runs(gm, python, tmp_path):
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "sitecustomize.py").write_text("import sys\nsys.marked = 'by the user'\n")
    code = "import sys, sitecustomize; print(sys.marked, sitecustomize.__file__, sys.path[:3])"
    (tmp_path / "script.py").write_text(
        f"import subprocess, sys\nprint(subprocess.run([sys.executable, '-c', {code!r}], capture_output=True))\n"
    )
    path = {"PYTHONPATH": str(extra) + ":" + python.__globals__["SOURCES"]}
    assert_same(gm("run", "--quiet", "script.py", **path), python("script.py", **path))
