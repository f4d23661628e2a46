import sys

import pytest

from gradmedic.errors import InputError
from gradmedic.report.needs import needed


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make a package whose module `odd_pack.part` has this text."""

    def make(text):
        (tmp_path / "odd_pack").mkdir()
        (tmp_path / "odd_pack" / "__init__.py").write_text("")
        (tmp_path / "odd_pack" / "part.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        for name in ("odd_pack", "odd_pack.part"):
            monkeypatch.delitem(sys.modules, name, raising=False)

    return make


def test_what_is_there_is_imported():
    assert needed("json", "the page needs json", "report") is __import__("json")


@pytest.mark.parametrize("name", ["no_such_package", "no_such_package.part"])
def test_what_is_not_installed_is_named_with_its_extra(name):
    with pytest.raises(InputError, match=r"needs it, which is not installed: pip install 'gradmedic\[serve\]'"):
        needed(name, "serving needs it", "serve")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_thing", "which is installed, but lacks no_such_thing"),
        ("from json import no_such_name", "which is installed, but cannot be imported: cannot import name"),
    ],
)
def test_what_is_installed_and_broken_is_not_called_missing(package, text, said):
    package(text)
    with pytest.raises(InputError, match=said) as caught:
        needed("odd_pack.part", "serving needs it", "serve")
    assert "pip install" not in str(caught.value)
