"""The backward pass as a film: frame by frame, and as a file."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from matplotlib import animation
from matplotlib.figure import Figure
from PIL import Image
from plot_runs import HOSTILE, facts, frame_of, norms_of, run_of, simple_run

from gradmedic import plot
from gradmedic.errors import InputError

NAMES = tuple(f"l.{at}.w" for at in range(6))


def curve_at(film, ax, frame):
    """x and y of the present step's curve."""
    film._func(frame)
    (line,) = [each for each in ax.get_lines() if each.get_linewidth() == 2.0]
    return line.get_xdata().tolist(), line.get_ydata().tolist()


def film_of(run, **values):
    ax = Figure().subplots()
    film = plot.flow_animation(run, ax=ax, **values)
    film._draw_was_started = True  # nobody looks at it
    return film, ax


def test_the_gradient_travels_from_output_to_input_step_by_step():
    norms = norms_of(6, 4)
    film, ax = film_of(simple_run(NAMES, 4), travel=3)
    assert film._save_count == 12
    assert [tick.get_text() for tick in ax.get_xticklabels()] == [f"l.{at}" for at in range(5, -1, -1)]
    for frame in range(12):
        step, phase = divmod(frame, 3)
        x, y = curve_at(film, ax, frame)
        reached = 2 * (phase + 1)
        assert x == list(range(reached))
        np.testing.assert_allclose(y, norms[step, ::-1][:reached])


def test_of_many_steps_the_strange_ones_are_shown():
    norms = np.ones((100, 6))
    norms[37] = 1e4
    frames = [frame_of(step, NAMES, norms[step], nan_count=int(step == 62)) for step in range(100)]
    film, ax = film_of(run_of(frames, facts(NAMES)), at_most=10, travel=1)
    captions = []
    for frame in range(film._save_count):
        film._func(frame)
        captions.append(ax.texts[-1].get_text().split()[1])
    assert len(captions) == 10
    assert {"37", "62"} <= set(captions)


def test_what_is_not_finite_is_a_cross_at_the_edge():
    frames = [frame_of(0, NAMES, [1.0] * 6, nan_count=[0, 0, 0, 0, 5, 0])]
    film, ax = film_of(run_of(frames, facts(NAMES)), travel=1)
    curve_at(film, ax, 0)
    (crosses,) = [line for line in ax.get_lines() if line.get_marker() == "x"]
    assert crosses.get_xdata().tolist() == [1]


def test_a_gif_has_every_frame_at_its_pace(tmp_path):
    path = tmp_path / "flow.gif"
    run = simple_run(NAMES, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        film = plot.flow_animation(run, path, fps=10, travel=2)
        visible = [each.get_visible() for each in film._fig.axes[0].get_children()]
    assert all(visible)
    assert not film._fig.images
    with Image.open(path) as picture:
        assert picture.n_frames == 6
        assert picture.info["duration"] == 100
        frames = []
        for at in range(picture.n_frames):
            picture.seek(at)
            frames.append(np.asarray(picture.convert("RGB"), dtype=int))
    assert all(np.abs(one - other).sum() > 0 for one, other in pairwise(frames))
    # What stands still, the tick labels for instance, is the same in all of them.
    low = frames[0].shape[0] * 4 // 5
    assert all(np.abs(frame[low:] - frames[0][low:]).mean() < 2 for frame in frames)  # each has its own 256 colours
    assert (frames[0][low:] < 128).any()


def test_a_film_needs_ffmpeg_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(animation.FFMpegWriter, "isAvailable", classmethod(lambda _: False))
    with pytest.raises(InputError, match="needs ffmpeg, which is not on the PATH: install it"):
        plot.flow_animation(simple_run(NAMES, 2), tmp_path / "flow.mp4")


@pytest.mark.parametrize(
    ("path", "values", "message"),
    [
        ("flow.png", {}, "is saved as .gif, .mp4"),
        ("nowhere/flow.gif", {}, "there is no folder"),
        (None, {"fps": 0}, "fps must be above 0"),
        (None, {"metric": "zero_share"}, "metric must be norm"),
    ],
)
def test_wrong_arguments_are_named(tmp_path, path, values, message):
    with pytest.raises(InputError, match=message):
        plot.flow_animation(simple_run(NAMES, 2), None if path is None else tmp_path / path, **values)


def test_an_empty_run_and_hostile_names_stand(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plot.flow_animation(run_of([]), tmp_path / "empty.gif")
        plot.flow_animation(simple_run(HOSTILE, 2), tmp_path / "hostile.gif", per="tensor", travel=1)
    with Image.open(tmp_path / "empty.gif") as picture:
        assert picture.size[0] > 100
