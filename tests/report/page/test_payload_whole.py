import numpy as np
import pytest
from payload_runs import HOSTILE, fact, frame, run_of, strict, unpacked

from gradmedic.diagnosis import Engine, diagnose
from gradmedic.frame import Frame
from gradmedic.record import Recorder, open_run
from gradmedic.report.page.payload import build_payload
from gradmedic.report.page.verdict import recorded_findings

KEYS = {
    *(
        "format",
        "version",
        "run",
        "optimizers",
        "findings",
        "not_judged",
        "alone",
        "scalars",
        "correlation",
        "marks",
        "mark_counts",
    ),
    *("tensors", "layers", "grids", "boxes", "heads", "tree"),
}


def payload(run, findings=(), **given):
    return strict(build_payload(run, list(findings), **given))


def grid(found, name, optimizer="adam"):
    (entry,) = [each for each in found["grids"] if (each["id"], each["optimizer"]) == (name, optimizer)]
    return entry, unpacked(entry["values"])


def curve(found, name, optimizer="adam"):
    entry = found["scalars"][optimizer][name]
    return unpacked(entry["step"]), unpacked(entry["y"])


def sick_run():
    names = ["a.weight", "a.bias", "b.weight"]
    rng = np.random.default_rng(0)
    frames = []
    for step in range(40):
        scalars = {
            "loss": 1.0 / (step + 1) if step < 30 else np.nan,
            "grad_norm": 2.0,
            "lr": 0.1,
            "logged": {"acc": step},
        }
        broken = [0, 0, 3 if step == 35 else 0]
        counts = np.zeros((3, 64), np.int64)
        counts[:, 40:44] = 1
        histogram = counts if step % 10 == 0 else None
        norm = rng.random(3)
        frames.append(
            frame(step, names, norm=norm, max_abs=norm, nan_count=broken, histogram=histogram, scalars=scalars)
        )
    return run_of(frames, facts=[fact(name, order=at) for at, name in enumerate(names)]), names


def test_values_shown_are_those_recorded():
    run, names = sick_run()
    found = payload(run)
    assert set(found) == KEYS
    assert [entry["name"] for entry in found["tensors"]] == names
    entry, norms = grid(found, "norm")
    assert (entry["of"], entry["log"], entry["rows"]) == ("tensors", True, names)
    assert unpacked(entry["first"]).tolist() == unpacked(entry["last"]).tolist() == list(range(40))
    recorded = run.matrix("norm")[2].T.astype(np.float32)
    recorded[2, 35] = np.inf
    np.testing.assert_array_equal(norms, recorded)
    layer, joint = grid(found, "layer_norm")
    assert layer["rows"] == ["a", "b"]
    np.testing.assert_allclose(joint[0], np.hypot(norms[0], norms[1]), rtol=1e-6)
    steps, loss = curve(found, "loss")
    assert steps.tolist() == list(range(40))
    np.testing.assert_array_equal(loss[:30], run.series("loss")[:30].astype(np.float32))
    assert np.isinf(loss[30:]).all()
    assert curve(found, "logged.acc")[1].tolist() == list(range(40))
    assert "clip_rate" not in found["scalars"]["adam"]
    assert found["tensors"][2]["state"] == "non-finite"
    assert found["tensors"][2]["trouble"] == max(entry["trouble"] for entry in found["tensors"])
    assert [box["step"] for box in found["boxes"]] == [0, 10, 20, 30]
    assert unpacked(found["boxes"][0]["q"]).shape == (3, 7)
    assert found["layers"][0] == {"name": "a", "kind": "Linear", "tensors": [0, 1]}


def test_the_run_as_a_whole():
    run, _ = sick_run()
    about = payload(run)["run"]
    assert (about["steps"], about["tensors"], about["parameters"]) == (40, 3, 12)
    assert (about["ended"], about["reason"], about["thinned"], about["processes"]) == (True, "finished", False, 1)
    assert about["seconds"] == 39.0


def test_two_optimizers_have_grids_and_curves_of_their_own():
    frames = [frame(at // 2, [f"{'DG'[at % 2]}.w"], "DG"[at % 2], norm=at + 1.0, time=float(at)) for at in range(8)]
    found = payload(run_of(frames))
    assert found["optimizers"] == ["D", "G"]
    assert set(found["scalars"]) == set(found["correlation"]) == {"D", "G"}
    assert grid(found, "norm", "D")[1].tolist() == [[1, 3, 5, 7]]
    assert grid(found, "norm", "G")[1].tolist() == [[2, 4, 6, 8]]


def test_an_optimizer_for_each_parameter_is_bounded():
    names = [f"l.{at}.w" for at in range(50)]
    frames = [
        frame(step, [name], name, norm=1.0, time=step + at / 99) for step in range(4) for at, name in enumerate(names)
    ]
    found = payload(run_of(frames))
    (entry,) = [each for each in found["grids"] if each["id"] == "norm"]
    assert (entry["optimizer"], entry["rows"], entry["values"]["n"]) == (None, names, [50, 4])
    assert len(found["optimizers"]) == len(found["scalars"]) == 32
    assert len(found["tensors"]) == 50


@pytest.mark.parametrize("meta", [{}, {"models": "odd", "command": 3, "settings": [1], "created": "x"}])
def test_an_empty_run(meta):
    found = payload(run_of([], meta=meta))
    assert set(found) == KEYS
    assert found["run"]["steps"] == 0
    assert found["not_judged"]["en"]
    assert found["grids"] == found["boxes"] == found["tensors"] == []


def test_a_step_of_which_nothing_is_known():
    fields = Frame.__dataclass_fields__
    nothing = {name: None for name in fields if name not in ("step", "optimizer", "time", "tensors", "modules")}
    found = payload(run_of([Frame(step=0, optimizer="adam", time=float("nan"), **nothing)]))
    assert found["scalars"] == {"adam": {}}
    assert found["run"]["last"] is None


def test_hostile_names_pass_through_as_they_are():
    names = [f"{name}.{at}.weight" for at, name in enumerate(HOSTILE)]
    scalars = {"loss": 1.0, "skipped": True, "skip_reason": HOSTILE[0], "logged": {HOSTILE[3]: 1.0}}
    run = run_of(
        [frame(step, names, HOSTILE[1], norm=1.0, scalars=scalars) for step in range(3)],
        facts=[fact(name, optimizer=HOSTILE[1]) for name in names],
        meta={"models": [{"name": HOSTILE[0], "class": HOSTILE[4]}], "command": ["python", HOSTILE[0] + ".py"]},
    )
    found = payload(run)
    assert [entry["name"] for entry in found["tensors"]] == names
    assert found["optimizers"] == [HOSTILE[1]]
    assert f"logged.{HOSTILE[3]}" in found["scalars"][HOSTILE[1]]
    assert found["marks"][0]["text"] == HOSTILE[0]
    assert found["tree"][0]["kind"] == HOSTILE[4]


def test_the_tree_adds_up():
    names = ["a.0.weight", "a.1.weight", "head.weight"]
    models = [
        {"name": name, "class": kind}
        for name, kind in [("", "Net"), ("a", "Seq"), ("a.0", "L"), ("a.1", "L"), ("head", "L")]
    ]
    run = run_of(
        [frame(0, names, norm=[1.0, 0.0, 1.0])],
        facts=[fact(name, trainable=name != "head.weight") for name in names],
        meta={"models": models},
    )
    tree = {entry["name"]: entry for entry in payload(run)["tree"]}
    assert [entry["depth"] for entry in tree.values()] == [0, 1, 2, 2, 1]
    assert [tree[name]["parameters"] for name in ("", "a", "a.0")] == [12, 8, 4]
    assert [tree[name]["state"] for name in ("", "a", "a.0", "a.1", "head")] == ["zero", "zero", "ok", "zero", "frozen"]
    assert tree["a.1"]["shapes"] == [[2, 2]]
    without = {entry["name"]: entry for entry in payload(run_of([frame(0, names, norm=1.0)]))["tree"]}
    assert list(without) == ["", "a", "a.0", "a.1", "head"]


def test_heatmaps_stay_below_their_bytes():
    names = [f"l.{at}.weight" for at in range(300)]
    run = run_of([frame(step, names, norm=1.0 + step, max_abs=step, cosine_prev=0.5) for step in range(150)])
    found = build_payload(run, [], columns=40)
    for entry in found["grids"]:
        assert entry["values"]["n"] == [300, 40]
        assert unpacked(entry["first"])[0] == 0
        assert unpacked(entry["last"])[-1] == 149


def test_thinned_and_torn_records_say_so(tmp_path):
    recorder = Recorder(tmp_path, meta={}, budget=300_000)
    names = [f"l.{at}.weight" for at in range(100)]
    rng = np.random.default_rng(0)
    for step in range(600):
        recorder.put(frame(step, names, norm=rng.random(100), max_abs=rng.random(100)), keep=True)
        if step % 20 == 0:
            recorder.flush()
    recorder.close()
    about = payload(open_run(tmp_path))["run"]
    assert about["thinned"]
    assert about["steps"] == 600
    steps = next(tmp_path.glob("steps-*"))
    steps.write_bytes(steps.read_bytes()[:-700])
    (tmp_path / "run.json").write_text("{")
    torn = payload(open_run(tmp_path))
    assert any("could not be read" in text for text in torn["run"]["problems"])
    assert any("run.json" in text for text in torn["run"]["problems"])


def test_the_lowest_rank_is_shown_and_all_processes_are_counted(tmp_path):
    for rank in (1, 0):
        recorder = Recorder(tmp_path, meta={}, rank=rank, join=True)
        for step in range(4):
            recorder.put(frame(step, ["a"], norm=10.0 * rank + step, scalars={"loss": float(rank)}), keep=True)
        recorder.close()
    found = payload(open_run(tmp_path))
    assert grid(found, "norm")[1].tolist() == [[0, 1, 2, 3]]
    assert curve(found, "loss")[1].tolist() == [0, 0, 0, 0]
    assert (found["run"]["steps"], found["run"]["processes"]) == (4, 2)


def test_the_version_changes_with_the_content(tmp_path):
    recorder = Recorder(tmp_path, meta={})
    versions = []
    for step in range(3):
        recorder.put(frame(step, ["a"], norm=1.0), keep=True)
        recorder.flush()
        versions.append(build_payload(open_run(tmp_path), [])["version"])
    recorder.close()
    versions.append(build_payload(open_run(tmp_path), [])["version"])
    assert len(set(versions)) == 4
    assert build_payload(open_run(tmp_path), [])["version"] == versions[-1]


def test_findings_told_while_training_are_those_of_a_diagnosis():
    frames = [frame(at, ["a.weight"], norm=1.0, scalars={"loss": 1.0, "lr": 0.0, "grad_norm": 1.0}) for at in range(30)]
    engine, told = Engine(), []
    for each in frames:
        told += engine.on_frame(each)
    told += [*engine.finish(), *engine.revised]
    events = [{"kind": "finding", "step": each.step, "finding": each.to_json(full=True)} for each in told]
    run = run_of(frames, events=events)
    now = payload(run, diagnose(run))
    assert "GM111" in [entry["code"] for entry in now["findings"]["en"]]
    assert now["findings"] == payload(run, recorded_findings(run.events))["findings"]
    assert build_payload(run)["findings"] == now["findings"]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_was_recorded_is_consistent(seed):
    rng = np.random.default_rng(seed)
    names = [f"m.{at % 3}.{at}" for at in range(6)]
    specials = np.array([np.nan, np.inf, -np.inf, 0.0, 1e-320, 1e300, 1.0])
    frames = []
    for step in range(int(rng.integers(1, 60))):
        chosen = [name for name in names if rng.random() < 0.8]
        columns = {
            each: rng.choice(specials, len(chosen))
            for each in ("norm", "max_abs", "update_norm", "weight_norm", "cosine_prev")
        }
        columns |= {each: rng.integers(0, 3, len(chosen)) for each in ("status", "nan_count", "zero_count", "numel")}
        scalars = {
            each: rng.choice([None, *specials]) for each in ("loss", "lr", "grad_norm", "loss_scale", "step_seconds")
        }
        scalars |= {"clipped": bool(rng.random() < 0.5), "skipped": bool(rng.random() < 0.2)}
        frames.append(frame(step, chosen, f"o{rng.integers(0, 2)}", time=step + 0.5, scalars=scalars, **columns))
    found = payload(run_of(frames), columns=20)
    known = {entry["name"] for entry in found["tensors"]}
    layers = {entry["name"] for entry in found["layers"]}
    for entry in found["grids"]:
        rows, columns = entry["values"]["n"]
        assert len(entry["rows"]) == rows
        assert set(entry["rows"]) <= (layers if entry["of"] == "layers" else known)
        assert len(unpacked(entry["first"])) == len(unpacked(entry["last"])) == columns <= 20
        assert (unpacked(entry["first"]) <= unpacked(entry["last"])).all()
    for curves in found["scalars"].values():
        for entry in curves.values():
            assert entry["step"]["n"] == entry["y"]["n"]
    assert all(0 <= at < len(found["tensors"]) for layer in found["layers"] for at in layer["tensors"])
    assert all(entry["trouble"] >= 0 for entry in [*found["tensors"], *found["tree"]])
