"""The checksum is the one that TensorBoard's own code computes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.tensorflow_stub import pywrap_tensorflow

from gradmedic.export.checksum import crc32c, masked


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_known_values(data, expected):
    """RFC 3720, B.4."""
    assert crc32c(data) == expected


@settings(deadline=None, max_examples=60)
@given(st.integers(0, 3000), st.integers(0, 2**32 - 1))
def test_as_tensorboard_has_it(size, seed):
    data = np.random.default_rng(seed).bytes(size)
    assert crc32c(data) == pywrap_tensorflow.crc32c(data)
    assert masked(crc32c(data)) == pywrap_tensorflow.masked_crc32c(data)
