"""The table of what rules rest on agrees with what the rules read."""

import importlib
import inspect
import pkgutil

import pytest

from gradmedic.diagnosis import coverage
from gradmedic.diagnosis import rules as package


def sources():
    for entry in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{entry.name}")
        for value in vars(module).values():
            if inspect.isclass(value) and value.__module__ == module.__name__ and hasattr(value, "code"):
                yield value.code, inspect.getsource(module)


#: Rules that are judged without rows of modules, and are surer with them.
SURER = {"GM403"}


def test_rules_of_modules_are_those_that_read_module_rows():
    assert set(coverage.MODULE_RULES) | SURER == {code for code, source in sources() if "module_rows" in source}


@pytest.mark.parametrize("code", coverage.LOSS_CALL_RULES)
def test_rules_of_loss_calls_read_them(code):
    assert "losses" in dict(sources())[code]


def test_every_code_is_a_rule():
    known = dict(sources())
    groups = (coverage.MODULE_RULES, coverage.LOSS_CALL_RULES, coverage.LOSS_RULES, coverage.TABLE_RULES)
    assert all(code in known for group in groups for code in group)
