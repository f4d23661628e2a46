from __future__ import annotations

import pytest
import torch

from gradmedic.stats import native_available

# What is about the kernel is collected where there is one; test_stats_without_kernel.py says when there has to be.
collect_ignore = [] if native_available() else ["test_stats_native.py", "test_stats_multiplying.py"]


@pytest.fixture(autouse=True)
def two_threads():
    """Leave the number of threads as it was found, whatever a test does with it."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
