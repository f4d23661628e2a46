"""Whole optimizer steps on a device that sees every way to and from it: nothing waits, and the numbers are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parent
#: As in card_checks.py, which cannot be imported here: it changes torch for the whole process.
CASES = (
    "watched", "script's clip", "clip.norm, script's clip", "agc", "layers", "guard, SGD", "skip and clip", "every 3",
    "scaler", "scaler, script's clip",
)  # fmt: skip
ON_HOST = ("some on the host", "some on the host, by element")


@pytest.fixture(scope="module")
def reports():
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE)}
    done = subprocess.run(
        [sys.executable, str(HERE / "card_checks.py")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert set(found) == {*CASES, *ON_HOST}
    return found


def assert_frames_equal(frames, expected, rtol=1e-9) -> None:
    assert [sorted(frame) for frame in frames] == [sorted(frame) for frame in expected]
    for frame, other in zip(frames, expected, strict=True):
        for key, value in frame.items():
            np.testing.assert_allclose(value, other[key], rtol=rtol, atol=0, equal_nan=True, err_msg=key)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_no_step_waits_for_the_device(reports, case):
    """Watching, clipping, skipping (with a fused optimizer, from its first step on) and recording, beside a scaler."""
    seen = reports[case]
    assert seen["waits"] == []
    assert seen["own"] == seen["own_at_the_end"] == 0


@pytest.mark.parametrize("case", CASES)
def test_numbers_that_arrive_late_are_those_of_the_host(reports, case):
    seen = reports[case]
    assert seen["weights_apart"] == 0
    assert_frames_equal(seen["frames"], seen["expected"])
    assert [frame["skipped"] for frame in seen["frames"]].count(True) in (0, 2)


@pytest.mark.parametrize("case", CASES)
def test_a_recorded_step_is_one_copy(reports, case):
    """And one for flags that may end training; in the first steps, one for what the model is fed."""
    guarded = "guard" in case or case in ("skip and clip", "scaler")
    copies = np.diff(reports[case]["copies"])
    expected = [0, 0, 1] if case == "every 3" else [2 if guarded else 1] * 3
    assert copies[3:].tolist() == expected


def test_no_operation_of_ours_is_refused_where_all_must_be_deterministic(reports):
    assert all(seen["not_deterministic"] == [] for seen in reports.values())


@pytest.mark.parametrize("case", ON_HOST)
def test_gradients_on_the_host_and_on_a_device_are_treated_together(reports, case):
    """Only the factor for those on the host is waited for: it is the host that multiplies."""
    seen = reports[case]
    assert seen["weights_apart"] <= 1e-5
    assert_frames_equal(seen["frames"], seen["expected"], rtol=1e-4)
    ours = [wait for wait in seen["waits"] if "/" in wait]
    assert all(wait.startswith("_to_copy to cpu: /stats/transfer.py") for wait in ours)
