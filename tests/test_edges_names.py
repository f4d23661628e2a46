"""Names of deep and of shared modules: found in the time that their number asks for."""

from __future__ import annotations

from torch import nn

from gradmedic.names import name_parameters, walk_modules


class Level(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def test_every_module_of_a_deep_nest_is_visited_once():
    """R64: 2,000 levels, below any recursion limit, in as many visits."""
    model = nn.Linear(1, 1)
    for _ in range(2000):
        model = Level(inner=model)
    names = [name for name, _ in walk_modules(model)]
    assert len(names) == 2001
    assert names[-1] == ".".join(["inner"] * 2000)
    assert [entry.name for entry in name_parameters({"": model}).values()] == [
        f"{names[-1]}.weight",
        f"{names[-1]}.bias",
    ]


def test_blocks_used_twice_in_blocks_used_twice_are_bounded():
    """R64: 40 levels have 2^40 names; a module is known under its first eight."""
    model = leaf = nn.Linear(1, 1, bias=False)
    for _ in range(40):
        model = Level(left=model, right=model)
    walked = [module for _, module in walk_modules(model)]
    assert sum(module is leaf for module in walked) == 8
    assert len(walked) <= 8 * 41
    (entry,) = name_parameters({"": model}).values()
    assert entry.name == ".".join(["left"] * 40 + ["weight"])
    assert len(entry.aliases) == 7


def test_a_module_that_holds_itself_is_walked_once():
    """R64: a cycle of modules ends where it began, and a sibling after it is still reached."""
    model = Level(child=Level())
    model.child.parent = model
    model.last = nn.Linear(1, 1)
    assert [name for name, _ in walk_modules(model)] == ["", "child", "last"]
