import json
import shutil
import time

import pytest
from serve_client import Client, frame, grid, record

from gradmedic.diagnosis import diagnose
from gradmedic.record import Recorder, open_run
from gradmedic.report.page.payload import build_payload
from gradmedic.serve import Server, feed, growth


@pytest.fixture
def serve():
    """Serves folders; returns a client."""
    open_ones = []

    def begin(*paths, **given):
        server = Server(paths, port=0, **given)
        open_ones.append(server.__enter__())
        return Client(server)

    yield begin
    for server in open_ones:
        server.__exit__(None, None, None)


def test_what_is_served_is_what_the_report_shows(tmp_path, serve):
    record(tmp_path / "exp")
    client = serve(tmp_path / "exp")
    (entry,) = client.runs()
    assert (entry["id"], entry["name"], entry["steps"], entry["ended"]) == (0, "exp", 20, True)
    run = open_run(tmp_path / "exp")
    findings = diagnose(run)
    codes = [finding.code for finding in findings]
    client.until("/api/runs/0", lambda found: [each["code"] for each in found["findings"]["en"]] == codes)
    found = client.until("/api/runs/0", lambda found: found["grids"] and found["tensors"][0]["trouble"] is not None)
    expected = json.loads(json.dumps(build_payload(run, findings, columns=200)))
    assert found.keys() == expected.keys()
    for key in expected.keys() - {"version", "tensors", "tree"}:
        assert found[key] == expected[key], key


def test_nothing_is_sent_anew_until_it_changes(tmp_path, serve):
    recorder = record(tmp_path / "exp", close=False)
    client = serve(tmp_path / "exp")
    version = client.json("/api/runs/0")["version"]
    assert client.ask("GET", f"/api/runs/0?version={version}")[0] == 204
    assert client.ask("GET", "/api/runs/0?version=other")[0] == 200
    assert client.runs()[0]["version"] == version
    recorder.close()


def test_new_steps_are_seen_within_two_seconds(tmp_path, serve):
    recorder = record(tmp_path / "exp", close=False)
    client = serve(tmp_path / "exp")
    assert client.json("/api/runs/0")["run"]["steps"] == 20
    time.sleep(0.5)
    taken = []
    for step in (20, 21, 22):  # a machine that is busy for a moment takes longer once
        begun = time.monotonic()
        recorder.put(frame(step), keep=True)
        client.until("/api/runs/0", lambda found, steps=step + 1: found["run"]["steps"] == steps)
        client.until("/api/runs/0", lambda found, steps=step + 1: grid(found)["values"]["n"] == [2, steps])
        taken.append(time.monotonic() - begun)
        if taken[-1] < 3.5:
            break
    assert taken[-1] < 3.5, taken  # 2 s on a machine that does nothing else
    assert not client.runs()[0]["ended"]
    recorder.close()
    client.until("/api/runs/0", lambda found: found["run"]["ended"])


def test_a_run_that_does_not_exist_yet_is_waited_for(tmp_path, serve):
    client = serve(tmp_path / "later", lang="zh")
    (entry,) = client.runs()
    assert (entry["name"], entry["steps"], entry["ended"]) == ("later", 0, False)
    waiting = client.json("/api/runs/0")
    assert "later" in waiting["run"]["problems"][0]
    assert "等待" in waiting["run"]["problems"][0]
    assert (waiting["run"]["begun"], waiting["run"]["name"], waiting["grids"]) == (None, "later", [])
    record(tmp_path / "later")
    found = client.until("/api/runs/0", lambda found: found["run"]["steps"] == 20 and found["grids"])
    assert found["run"]["problems"] == []


def test_runs_of_a_folder_appear_as_they_begin(tmp_path, serve):
    record(tmp_path / "one")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to(tmp_path.parent)
    client = serve(tmp_path)
    assert [(entry["id"], entry["name"]) for entry in client.runs()] == [(0, "one")]
    record(tmp_path / "two", steps=3)
    listed = client.until("/api/runs", lambda found: len(found) == 2 and all(entry["steps"] for entry in found))
    assert [(entry["id"], entry["name"], entry["steps"]) for entry in listed] == [(1, "two", 3), (0, "one", 20)]
    assert client.json("/api/runs/1")["run"]["steps"] == 3


def test_a_torn_run_says_so(tmp_path, serve):
    record(tmp_path / "exp", steps=300)
    for kind in ("steps", "tensors"):
        part = next((tmp_path / "exp").glob(f"{kind}-*"))
        part.write_bytes(part.read_bytes()[:-400] + b"\0" * 100)
    client = serve(tmp_path / "exp")
    found = client.until("/api/runs/0", lambda found: len(found["run"]["problems"]) == 2)
    assert all("could not be read" in text for text in found["run"]["problems"])


def test_a_run_that_vanishes_stays_on_the_page_and_one_that_begins_anew_takes_its_place(tmp_path, serve):
    folder = tmp_path / "exp"
    record(folder)
    client = serve(folder)
    assert client.json("/api/runs/0")["run"]["steps"] == 20
    shutil.rmtree(folder)
    found = client.until("/api/runs/0", lambda found: found["run"]["problems"])
    assert "can no longer be listed" in found["run"]["problems"][0]
    assert found["run"]["steps"] == 20
    record(folder, steps=5)
    found = client.until("/api/runs/0", lambda found: found["run"]["steps"] == 5 and not found["run"]["problems"])
    client.until("/api/runs/0", lambda found: grid(found)["values"]["n"] == [2, 5])


def test_a_restart_follows_what_was_before(tmp_path, serve):
    record(tmp_path / "exp", steps=10)
    client = serve(tmp_path / "exp")
    client.until("/api/runs/0", lambda found: found["run"]["ended"])
    recorder = record(tmp_path / "exp", steps=4, start=8, join=True, close=False)
    found = client.until(
        "/api/runs/0", lambda found: found["run"]["steps"] == 14 and grid(found)["values"]["n"] == [2, 14]
    )
    assert found["run"]["processes"] == 2
    recorder.close()


@pytest.mark.parametrize("part", ["steps_part", "tables_part"])
def test_what_cannot_be_shown_is_said_and_the_rest_is_shown(tmp_path, serve, monkeypatch, part):
    record(tmp_path / "exp")
    owner = feed if part == "steps_part" else growth
    whole = getattr(owner, part)

    def fails(source, *rest):
        if source.run.path is None:
            return whole(source, *rest)
        raise ArithmeticError("odd <numbers>")

    monkeypatch.setattr(owner, part, fails)
    client = serve(tmp_path / "exp")
    found = client.json("/api/runs/0")
    assert any("ArithmeticError: odd <numbers>" in text for text in found["run"]["problems"])
    assert found["run"]["steps"] == (20 if part == "tables_part" else 0)
    monkeypatch.setattr(owner, part, whole)
    client.until(
        "/api/runs/0", lambda found: found["run"]["steps"] == 20 and found["grids"] and not found["run"]["problems"]
    )


def test_names_that_would_break_a_page_arrive_whole(tmp_path, serve):
    names = ("</script><img src=x>", "\u2028\x1b[31m" + "长" * 300)
    record(tmp_path / "<b>&amp;", steps=2, names=names)
    client = serve(tmp_path / "<b>&amp;")
    assert client.runs()[0]["name"] == "<b>&amp;"
    found = client.until("/api/runs/0", lambda found: found["grids"])
    assert tuple(entry["name"] for entry in found["tensors"]) == names


def test_findings_told_while_it_trains(tmp_path, serve):
    told = {
        "code": "GM302", "name": "exploding-gradient", "severity": "error", "confidence": 0.9, "step": 3,
        "where": ["a.weight"], "message": "as it was told", "variant": "?", "params": {},
    }  # fmt: skip
    recorder = Recorder(tmp_path / "exp", meta={})
    recorder.put(frame(0), keep=True)
    recorder.event({"kind": "finding", "step": 3, "finding": told})
    recorder.flush()
    found = serve(tmp_path / "exp").until("/api/runs/0", lambda found: found["grids"])
    assert [entry["message"] for entry in found["findings"]["en"]] == ["as it was told"]
    assert found["tensors"][0]["findings"] == ["GM302"]
    assert found["tensors"][0]["trouble"] > 0
    recorder.close()


def test_a_run_that_was_killed_is_judged_as_a_whole(tmp_path, serve, monkeypatch):
    monkeypatch.setattr(feed, "_SILENT_SECONDS", 0.0)
    recorder = Recorder(tmp_path / "exp", meta={})
    for step in range(30):
        recorder.put(frame(step, lr=0.0, loss=1.0, grad_norm=1.0), keep=True)
    recorder.flush()
    client = serve(tmp_path / "exp")
    client.until("/api/runs/0", lambda found: "GM111" in [each["code"] for each in found["findings"]["en"]])
    assert not client.runs()[0]["ended"]
    recorder.close()


def test_findings_of_several_ranks_are_there_while_they_train(tmp_path, serve, monkeypatch):
    """What ranks say together no rank says alone: weights that differ are found by who reads both."""
    monkeypatch.setattr(feed, "_RANKS_SECONDS", 0.0)
    told = []
    whole = feed.diagnose
    monkeypatch.setattr(feed, "diagnose", lambda run: told.append(run) or whole(run))
    recorders = [record(tmp_path / "exp", steps=5, close=False), record(tmp_path / "exp", steps=4, join=True, rank=1)]
    client = serve(tmp_path / "exp")
    found = client.until("/api/runs/0", lambda found: told and found["grids"])
    assert found["run"]["ranks"] == [[0, 5], [1, 4]]
    assert not found["run"]["ended"]
    for each in recorders:
        each.close()


def test_many_questions_at_once(tmp_path, serve):
    from concurrent.futures import ThreadPoolExecutor

    record(tmp_path / "exp", steps=50)
    client = serve(tmp_path / "exp")
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: client.ask("GET", "/api/runs/0")[0], range(48)))
    assert answers == [200] * 48
