"""What a pattern that matches nothing is told: names that exist and can be typed."""

from __future__ import annotations

import pytest

from gradmedic.checks import check_pattern
from gradmedic.errors import InputError


def test_root_module_has_no_name_to_suggest():
    with pytest.raises(InputError, match=r"near names: 0, 0\.bias$"):
        check_pattern("limits", "zz", ["", "0", "0.bias"])
    with pytest.raises(InputError, match=r"near names: \(none\)$"):
        check_pattern("limits", "zz", [""])
