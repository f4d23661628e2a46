from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def two_threads():
    """Leave the number of threads as it was found, whatever a test does with it."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
