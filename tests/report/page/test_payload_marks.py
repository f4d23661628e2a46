from payload_runs import frame, run_of

from gradmedic.report.page.marks import marks_of
from gradmedic.report.views import scalars_of


def marks(frames, events=(), most=2000):
    run = run_of(frames, events=events)
    return marks_of(scalars_of(run), run.events, most)


def test_skips_and_halts_come_first_and_all_are_counted():
    frames = [frame(at, scalars={"clipped": at % 2 == 0, "skipped": at == 5, "skip_reason": "r"}) for at in range(8)]
    found, counts = marks(
        frames, [{"kind": "halt", "step": 7, "reason": "limit"}, {"kind": "halt", "reason": "no step"}]
    )
    assert [(mark["kind"], mark["step"], mark["text"]) for mark in found] == [
        ("halt", 7, "limit"),
        ("skip", 5, "r"),
        *(("clip", at, "") for at in (0, 2, 4, 6)),
    ]
    assert counts == {"halt": 1, "skip": 1, "clip": 4}


def test_bounded_and_evenly_spread():
    frames = [frame(at, scalars={"clipped": True, "skipped": at % 100 == 0}) for at in range(1000)]
    found, counts = marks(frames, most=50)
    assert len(found) <= 50
    assert [mark["step"] for mark in found if mark["kind"] == "skip"] == list(range(0, 1000, 100))
    clips = [mark["step"] for mark in found if mark["kind"] == "clip"]
    assert (clips[0], clips[-1]) == (1, 999)
    assert counts == {"skip": 10, "clip": 990}


def test_more_skips_than_there_is_room():
    found, counts = marks([frame(at, scalars={"skipped": True}) for at in range(300)], most=20)
    assert len(found) == 20
    assert (found[0]["step"], found[-1]["step"]) == (0, 299)
    assert counts == {"skip": 300}


def test_only_the_first_origin_is_one_and_what_follows_from_it_is_none():
    def origin(step, kind, **more):
        return {"kind": "origin", "step": step, "class": kind, "where": ["x"], **more}

    frames = [frame(at) for at in range(60)]
    spread = [origin(41, "elsewhere"), origin(41, "data", rank=1), origin(42, "parameter")]
    found, counts = marks(frames, spread)
    assert [mark["step"] for mark in found if mark["kind"] == "origin"] == [41]
    assert counts["origin"] == 1
    found, _ = marks(frames, [origin(41, "elsewhere")])
    assert [mark["step"] for mark in found] == [41]
    found, _ = marks(frames, [origin(7, "data"), origin(50, "forward")])
    assert [mark["step"] for mark in found] == [7, 50]
