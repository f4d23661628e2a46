"""The catalogue of patients: what is in it holds together, and what is wrong is said."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks.patients.patient import HERE, Patient, load_catalogue, problems
from benchmarks.patients.plan import jobs, twin_of

from gradmedic.diagnosis.rules import RULES
from gradmedic.errors import InputError

ENTRY = {"id": '"F01"', "script": '"one.py"', "accepted": '["GM301"]', "split": '"held-out"'}


def write(folder: Path, *entries: dict[str, str]) -> Path:
    (folder / "catalogue").mkdir()
    (folder / "scripts").mkdir()
    (folder / "scripts" / "one.py").touch()
    text = "\n".join("[[patient]]\n" + "\n".join(f"{key} = {value}" for key, value in each.items()) for each in entries)
    (folder / "catalogue" / "part.toml").write_text(text, encoding="utf-8")
    return folder


def test_every_accepted_code_of_the_catalogue_has_a_rule() -> None:
    known = {rule.code for rule in RULES}
    patients = load_catalogue()
    assert {each.id: code for each in patients for code in each.accepted if code not in known} == {}


def test_both_splits_have_faults_and_controls_and_no_script_is_in_both() -> None:
    patients = load_catalogue()
    for split in ("development", "held-out"):
        assert any(patient.healthy for patient in patients if patient.split == split)
        assert any(not patient.healthy for patient in patients if patient.split == split)
    by_script: dict[str, set[str]] = {}
    for patient in patients:
        by_script.setdefault(patient.script, set()).add(patient.split)
    assert [script for script, splits in by_script.items() if len(splits) > 1] == []


def test_scripts_do_not_know_gradmedic() -> None:
    for script in (HERE / "scripts").glob("*.py"):
        assert "gradmedic" not in script.read_text(encoding="utf-8"), script.name


def test_an_entry_is_read_with_its_defaults(tmp_path: Path) -> None:
    (patient,) = load_catalogue(write(tmp_path, ENTRY))
    assert patient == Patient("F01", "one.py", ("GM301",), "held-out")
    assert (patient.code, patient.healthy, patient.onset, patient.layers) == ("GM301", False, 0, ())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"split": '"test"'}, "split is one of"),
        ({"accepted": '["learning rate"]'}, "codes look like"),
        ({"also_true": '["GM999"]'}, "codes look like"),
        ({"accepted": "[]"}, "begin with H"),
        ({"id": '"H01"'}, "begin with H"),
        ({"onset": "-3"}, "onset"),
        ({"layer": "[]"}, "unknown keys"),
        ({"script": '"two.py"'}, "no script two.py"),
    ],
)
def test_what_is_wrong_with_an_entry_is_said(tmp_path: Path, change: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        load_catalogue(write(tmp_path, ENTRY | change))


def test_a_missing_key_a_torn_file_and_an_empty_folder_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected accepted"):
        load_catalogue(write(tmp_path, {key: value for key, value in ENTRY.items() if key != "accepted"}))
    (tmp_path / "catalogue" / "part.toml").write_text("[[patient", encoding="utf-8")
    with pytest.raises(InputError, match=r"part\.toml"):
        load_catalogue(tmp_path)
    (tmp_path / "catalogue" / "part.toml").unlink()
    with pytest.raises(InputError, match="found none"):
        load_catalogue(tmp_path)


def test_an_id_that_is_given_twice_is_an_error(tmp_path: Path) -> None:
    write(tmp_path)
    patient = Patient("F01", "one.py", ("GM301",), "held-out")
    assert problems([patient, patient], tmp_path / "scripts") == ["F01: the id is given twice"]


def test_a_twin_runs_once_for_all_faults_of_its_script_and_seed() -> None:
    patients = [
        Patient("F01", "a.py", ("GM301",), "development"),
        Patient("F02", "a.py", ("GM302",), "development"),
        Patient("H01", "b.py", (), "held-out"),
    ]
    listed = jobs(patients, [3, 4])
    assert [(job.id, job.seed) for job in listed] == [
        (twin_of("a.py"), 3), ("F01", 3), ("F02", 3), ("H01", 3),
        (twin_of("a.py"), 4), ("F01", 4), ("F02", 4), ("H01", 4),
    ]  # fmt: skip
    assert [job.healthy for job in listed[:4]] == [True, False, False, True]
    assert listed[1].arguments("m.json") == ["--fault", "F01", "--seed", "3", "--metric", "m.json"]
    assert listed[0].arguments("m.json") == listed[3].arguments("m.json") == ["--seed", "3", "--metric", "m.json"]
    assert [job.id for job in jobs(patients, [0], twins=False)] == ["F01", "F02", "H01"]
