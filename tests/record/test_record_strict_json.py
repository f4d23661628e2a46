import dataclasses
import json
import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from record_samples import same

from gradmedic.record.strict_json import dumps, loads


def refuse(literal):
    raise AssertionError(f"{literal} is not strict JSON")


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.from_regex(r"\\{0,3}(NaN|Infinity|-Infinity)", fullmatch=True),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def equal(left, right):
    if isinstance(left, list):
        return len(left) == len(right) and all(equal(one, other) for one, other in zip(left, right, strict=True))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    return type(left) is type(right) and same(left, right)


@settings(deadline=None)
@given(values)
def test_any_value_survives_strict_json(value):
    text = dumps(value)
    json.loads(text, parse_constant=refuse)
    assert "\n" not in text
    assert equal(loads(text), value)


def test_non_finite_numbers_are_readable_texts():
    assert json.loads(dumps([math.nan, math.inf, -math.inf])) == ["NaN", "Infinity", "-Infinity"]
    assert json.loads(dumps("NaN")) == "\\NaN"


def test_values_of_other_libraries_become_plain():
    @dataclasses.dataclass
    class Point:
        x: float
        y: tuple[int, ...]

    event = {
        "norm": torch.tensor(2.5, requires_grad=True),
        "count": np.int64(3),
        "list": np.array([1.0, np.nan]),
        "bf16": torch.tensor([1.5], dtype=torch.bfloat16),
        "point": Point(math.inf, (1, 2)),
        "set": {"b", "a"},
        "device": torch.device("cpu"),
        4: None,
    }
    assert equal(
        loads(dumps(event)),
        {
            "norm": 2.5,
            "count": 3,
            "list": [1.0, math.nan],
            "bf16": [1.5],
            "point": {"x": math.inf, "y": [1, 2]},
            "set": ["a", "b"],
            "device": "cpu",
            "4": None,
        },
    )


def test_what_cannot_be_said_does_not_raise():
    class Hostile:
        def __str__(self):
            raise RuntimeError("no")

    loop: list = []
    loop.append(loop)
    assert loads(dumps({"a": Hostile(), "text": "\ud800"})) == {"a": "<Hostile>", "text": "?"}
    assert "…" in dumps(loop)
