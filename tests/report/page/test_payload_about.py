"""What the page says of the run as a whole."""

import json

import pytest

from gradmedic.errors import InputError
from gradmedic.frame import Frame
from gradmedic.record import Recorder, open_run
from gradmedic.report.page.payload import build_payload


@pytest.fixture
def going():
    """Recorders that have not ended: one that nobody holds ends by itself."""
    held = []
    yield held
    for recorder in held:
        recorder.close()


def record(folder, *, steps=5, times=None, norm=1.0, lr=None, going=None, meta=None, **given):
    recorder = Recorder(folder, meta=meta or {}, **given)
    for step in range(steps):
        time = times[step] if times else 1.7e9 + step
        frame = Frame(step, "adam", time=time, loss=1.0, lr=0.1 if lr is None else lr[step], grad_norm=norm)
        recorder.put(frame, keep=False)
    recorder.flush()
    if going is None:
        recorder.close()
    else:
        going.append(recorder)
    return folder


def test_a_clock_that_was_set_back_does_not_keep_a_run_from_having_ended(tmp_path, going):
    later = [4e9 + step for step in range(5)]  # beyond the clock by which it says that it ends
    assert build_payload(open_run(record(tmp_path / "run", times=later)), [])["run"]["ended"]
    assert not build_payload(open_run(record(tmp_path / "open", times=later, going=going)), [])["run"]["ended"]


def test_a_restart_that_goes_on_has_not_ended(tmp_path, going):
    record(tmp_path / "run")
    record(tmp_path / "run", join=True, going=going, times=[1.8e9 + step for step in range(5)])
    assert not build_payload(open_run(tmp_path / "run"), [])["run"]["ended"]


def test_limits_that_are_damaged_are_nobodys_limits(tmp_path):
    record(tmp_path / "run", meta={"limits": 5.0, "settings": {"limits": 5.0}})
    assert build_payload(open_run(tmp_path / "run"))["run"]["problems"] == []
    file = tmp_path / "run" / "run.json"
    told = json.loads(file.read_text())
    file.write_text(json.dumps({**told, "limits": {"a.*": "wide"}, "settings": {"limits": {"a.*": "wide"}}}))
    run = build_payload(open_run(tmp_path / "run"))["run"]
    assert run["problems"] == ["run.json: its limits are damaged, and were left out"]
    assert "settings.limits" not in dict(run["environment"])


def test_limits_that_a_caller_gives_are_still_checked(tmp_path):
    from gradmedic.diagnosis import diagnose

    with pytest.raises(InputError, match="must be a positive gradient norm"):
        diagnose(open_run(record(tmp_path / "run")), limits=-1.0)


@pytest.mark.parametrize(
    ("norm", "lr", "why"),
    [(float("nan"), None, "nonfinite"), (1.0, None, "still"), (1.0, [0.1, 0.2, 0.3, 0.4, 0.5], "still")],
)
def test_why_there_is_no_correlation(tmp_path, norm, lr, why):
    found = build_payload(open_run(record(tmp_path / "run", norm=norm, lr=lr)), [])["correlation"]["adam"]
    assert (found["value"], found["why"]) == (None, why)


def test_two_steps_are_too_few_to_correlate(tmp_path):
    found = build_payload(open_run(record(tmp_path / "run", steps=2)), [])["correlation"]["adam"]
    assert (found["value"], found["n"], found["why"]) == (None, 2, "few")


def test_steps_of_each_rank_are_told(tmp_path):
    record(tmp_path / "run")
    record(tmp_path / "run", steps=3, join=True, rank=1)
    assert build_payload(open_run(tmp_path / "run"), [])["run"]["ranks"] == [[0, 5], [1, 3]]
    assert build_payload(open_run(record(tmp_path / "one")), [])["run"]["ranks"] == []
