"""The fit of the ranking: its gradient, its bounds, and that it learns which class is the cause."""

import numpy as np
import pytest
from benchmarks.patients.fit_ranking import as_json, cases, fitted, left_out, loss, top_1
from benchmarks.patients.patient import Patient
from scipy.optimize import check_grad

from gradmedic.diagnosis.ranking import Weights, weights

CLASSES = ["GM301", "GM401", "GM403"]
START = np.array([1.5, 2.0, -0.6, 4.0, 3.8, 3.8])


def said(code, severity="warning", confidence=0.5, step=0):
    return {"code": code, "severity": severity, "confidence": confidence, "step": step, "variant": ""}


def made(n=6):
    """Patients whose cause is the quieter GM403, which the weights in force rank second."""
    patients = [Patient(f"F{i}", "s.py", ("GM403",), "development", also_true=("GM301",)) for i in range(n)]
    lines = [
        {"id": f"F{i}", "seed": seed, "findings": [said("GM401", "error"), said("GM403"), said("GM301", step=i)]}
        for i in range(n)
        for seed in range(2)
    ]
    return cases(lines, patients, CLASSES)


def test_runs_with_nothing_to_choose_between_are_left_out():
    patients = [Patient("F0", "s.py", ("GM403",), "development"), Patient("H0", "s.py", (), "development")]
    lines = [
        {"id": "F0", "seed": 0, "findings": [said("GM403")]},
        {"id": "F0", "seed": 1, "findings": [said("GM401")]},
        {"id": "F0", "seed": 2, "findings": [said("GM403"), said("GM401", "info")]},
        {"id": "H0", "seed": 0, "findings": [said("GM403"), said("GM401")]},
    ]
    assert cases(lines, patients, CLASSES) == []


def test_every_patient_counts_alike_and_what_is_true_besides_is_left_out():
    given = made(3)
    assert [case.weight for case in given] == [0.5] * 6
    assert all(case.features.shape == (2, 6) and case.right.tolist() == [False, True] for case in given)


def test_the_gradient_is_that_of_the_loss():
    given, theta = made(), START + np.linspace(-0.3, 0.4, len(START))
    error = check_grad(lambda x: loss(x, START, given)[0], lambda x: loss(x, START, given)[1], theta)
    assert error < 1e-5


def test_it_learns_and_holds_for_patients_that_it_has_not_seen():
    given = made()
    assert top_1(START, given) == 0.0
    theta = fitted(given, START)
    assert top_1(theta, given) == 1.0
    assert left_out(given, START) == 1.0
    assert theta[0] >= 0
    assert theta[1] >= 0
    assert theta[2] <= 0


def test_what_is_written_can_be_read_again():
    theta = fitted(made(), START)
    held = Weights.from_json(as_json(theta, START, CLASSES, weights()))
    assert held.prior("GM403") == pytest.approx(theta[5], abs=0.01)
    assert held.families == weights().families
