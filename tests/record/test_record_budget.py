import math

import pytest

from gradmedic.errors import InputError
from gradmedic.record.budget import parse_budget


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256MB", 256 * 2**20),
        ("1GB", 2**30),
        ("1.5 gb", 3 * 2**29),
        ("300k", 300 * 1024),
        (" 2 MiB ", 2**21),
        ("1048576", 2**20),
        (2**20, 2**20),
        (1e9, 10**9),
    ],
)
def test_sizes_are_read_as_people_write_them(text, size):
    assert parse_budget(text) == size


@pytest.mark.parametrize(
    "nonsense",
    [
        "",
        "MB",
        "-1MB",
        "1 PB",
        "1MBit",
        "lots",
        None,
        True,
        [],
        math.nan,
        math.inf,
        -1,
        0,
        "0MB",
        100,
        "1kb",
        1e6 + 0.5,
    ],
)
def test_nonsense_is_an_input_error_that_says_what_is_right(nonsense):
    with pytest.raises(InputError, match="budget must be"):
        parse_budget(nonsense)
