import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gradmedic.record.thinning import Thinning


def admitted(thinning, steps, size=10, every=1):
    kept, ordinal = [], 0
    for step in steps:
        if step % every == 0:
            if thinning.admit(step, ordinal, size):
                kept.append((step, ordinal))
            ordinal += 1
    return np.array(kept)


def kept_steps(thinning, rows):
    return rows[thinning.keep(rows[:, 0], rows[:, 1]), 0].tolist()


def test_nothing_is_thinned_at_first():
    thinning = Thinning(10**9, last=0)
    rows = admitted(thinning, range(500))
    assert kept_steps(thinning, rows) == list(range(500))


def test_each_tightening_keeps_every_second_of_what_was_kept_and_the_first_hundred():
    thinning = Thinning(10**9, last=0)
    rows = admitted(thinning, range(1000))
    for stride in (2, 4, 8):
        assert thinning.tighten()
        assert kept_steps(thinning, rows) == [*range(100), *(s for s in range(100, 1000) if s % stride == 0)]


def test_thinning_counts_what_was_asked_for_not_steps():
    thinning = Thinning(0, last=0)
    rows = admitted(thinning, range(1000), every=10)
    thinning.tighten()
    assert kept_steps(thinning, rows) == list(range(0, 1000, 20))


def test_new_rows_come_in_as_sparse_as_the_old_ones_are():
    thinning = Thinning(0, last=0)
    admitted(thinning, range(16))
    thinning.tighten()
    thinning.tighten()
    assert [step for step in range(200, 220) if thinning.admit(step, step, 10)] == [200, 204, 208, 212, 216]


@settings(deadline=None)
@given(st.lists(st.integers(0, 2000), max_size=5), st.integers(1, 6))
def test_surroundings_of_findings_stay(findings, rounds):
    thinning = Thinning(10**9, last=0)
    rows = admitted(thinning, range(1000))
    for step in findings:
        thinning.protect(step)
    rows = np.concatenate([rows, admitted(thinning, range(1000, 2000)) + np.array([0, 1000])])
    for _ in range(rounds):
        thinning.tighten()
    guarded = {step for step in range(2000) if step < 100 or any(abs(step - found) <= 50 for found in findings)}
    assert set(kept_steps(thinning, rows)) == guarded | set(range(0, 2000, 2**rounds))


def test_guarded_steps_take_no_more_than_their_share_first_come_first_served():
    thinning = Thinning(share=500, last=0)
    rows = admitted(thinning, range(400), size=10)
    for _ in range(9):
        thinning.tighten()
    assert kept_steps(thinning, rows) == list(range(50))


def test_what_nobody_asked_for_stays_only_while_guarded():
    thinning = Thinning(share=10**6, last=0)
    assert not thinning.admit(500, -1, 10)
    thinning.protect(500)
    assert thinning.admit(500, -1, 10)
    assert thinning.keep(np.array([500, 300]), np.array([-1, -1])).tolist() == [True, False]


def test_an_old_finding_is_protected_on_file():
    thinning = Thinning(10**9, last=0)
    rows = admitted(thinning, range(5000))
    thinning.protect(2500)
    for _ in range(5):
        thinning.tighten()
    assert set(range(2450, 2551)) <= set(kept_steps(thinning, rows))


def test_guarantees_are_the_last_to_go_the_later_ones_first():
    thinning = Thinning(10**9, last=0)
    rows = admitted(thinning, range(300))
    while thinning.density[1] == 0:
        assert thinning.tighten()
    assert kept_steps(thinning, rows) == list(range(50))
    while thinning.tighten():
        pass
    assert kept_steps(thinning, rows) == [0]


@settings(deadline=None)
@given(st.integers(1, 600), st.integers(0, 9), st.integers(1, 7))
def test_the_last_steps_stay_and_those_before_them_become_as_sparse_as_the_others(steps, rounds, every):
    thinning = Thinning(10**9, first=0)
    rows = admitted(thinning, range(steps), every=every)
    for _ in range(rounds):
        thinning.tighten()
    asked = range(0, steps, every)
    newest = asked[-1]
    expected = {step for at, step in enumerate(asked) if step > newest - 64 or at % thinning.stride == 0}
    assert set(kept_steps(thinning, rows)) == expected


def test_each_optimizer_has_last_steps_of_its_own():
    thinning = Thinning(10**9, first=0)
    for step in range(1000):
        thinning.admit(step, step, 10, "critic")
        if step % 5 == 4:
            thinning.admit(step // 5, step // 5, 10, "generator")
    assert thinning.tail() == {*range(936, 1000), *range(136, 200)}


def test_the_tail_keeps_the_newest_steps_that_fit_its_share():
    thinning = Thinning(share=750, first=0)
    rows = admitted(thinning, range(300), size=10)
    assert thinning.tail() == set(range(250, 300))
    for _ in range(9):
        thinning.tighten()
    assert kept_steps(thinning, rows) == [0, *range(250, 300)]
    while thinning.tighten():
        pass
    assert kept_steps(thinning, rows) == [0]


def test_the_tail_begins_anew_where_steps_do():
    thinning = Thinning(10**9, first=0)
    for ordinal, step in enumerate([*range(500, 700), *range(500, 510)]):
        thinning.admit(step, ordinal, 10)
    assert thinning.tail() == set(range(500, 510))
