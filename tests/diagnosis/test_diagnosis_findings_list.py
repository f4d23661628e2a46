"""What `diagnose` returns is a list, whatever else it is."""

import copy
import pickle

from gradmedic.diagnosis import Finding, diagnose
from gradmedic.diagnosis.findings import Findings
from gradmedic.record import MemoryRecorder

A, B = (Finding(code, "name", "error", 0.5, 3, message="It is so.") for code in ("GM301", "GM302"))


def test_it_is_a_list():
    found = Findings([A, B])
    assert isinstance(found, list)
    assert found == [A, B]
    assert found == [A, B]
    assert found[0] is A
    assert found[-1] is B
    assert found[:1] == [A]
    assert found.copy() == [*found] == [A, B]
    assert sorted(found, key=lambda each: each.code, reverse=True) == [B, A]
    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found
    assert not Findings()


def test_it_prints_a_paragraph_each_and_so_do_slices():
    assert str(Findings([A, B])) == f"{A}\n\n{B}"
    assert str(Findings([A, B])[1:]) == str(B)
    assert str(Findings()) == "no findings"


def test_diagnose_returns_one():
    recorder = MemoryRecorder(meta={})
    recorder.close()
    assert isinstance(diagnose(recorder.run), Findings)
