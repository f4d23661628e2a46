"""Small runs made by hand, of which everything is known, and what a drawn figure is asked for."""

import numpy as np

from gradmedic.facts import Facts, ParameterFact
from gradmedic.frame import Frame, TensorTable
from gradmedic.record import MemoryRecorder

#: Names that break whatever takes them for something else.
HOSTILE = (
    "<script>alert('x')</script>.weight",
    "price_$a$ and $b_{.weight",
    "two\nlines\r\x1b[31mred\x1b[0m.weight",
    "层.注意力.权重" * 6 + ".weight",
    "x" * 300,
    "x" * 299 + "y",
    "\u202eright to left.weight",
    "lone\ud800surrogate.weight".encode("utf-8", "replace").decode(),
    "😀.👩‍👩‍👧.weight",
    r"back\slash$\frac{.weight",
    "%d {0} {name} &amp;.weight",
    "",
)


def table(names, norm, histogram=None, **columns):
    size = len(names)
    norm = np.asarray(norm, dtype=float)
    made = {
        "status": np.zeros(size, np.int64),
        "numel": np.full(size, 100, np.int64),
        "zero_count": np.where(norm == 0, 100, 0),
        "nan_count": np.zeros(size, np.int64),
        "inf_count": np.zeros(size, np.int64),
        "norm": norm,
        "max_abs": norm / 2,
        "min_abs": np.zeros(size),
        "mean": np.zeros(size),
        "std": norm / 10,
        "mean_abs": norm / 20,
        "update_norm": norm / 100,
        "unchanged_frac": np.zeros(size),
        "cosine_prev": np.full(size, 0.5),
        "weight_norm": np.full(size, 2.0),
        "clip_scale": np.ones(size),
    }
    for key, values in columns.items():
        made[key] = np.broadcast_to(np.asarray(values), (size,))
    return TensorTable(tuple(names), made, histogram)


def histogram(size, seed=0):
    """Counts [size, 64] between 2^-13 and 2^-3."""
    counts = np.zeros((size, 64), np.int64)
    counts[:, 35:45] = np.random.default_rng(seed).integers(1, 50, (size, 10))
    return counts


def facts(names, **values):
    parameters = {
        name: ParameterFact(name, name.rpartition(".")[0], "Linear", (10, 10), numel=100, order=at, **values)
        for at, name in enumerate(names)
    }
    return Facts(parameters=parameters)


def run_of(frames, known=None):
    """A run in memory, closed."""
    recorder = MemoryRecorder(meta={"script": "train.py"})
    if known is not None:
        recorder.event({"kind": "facts", "step": 0, "time": 0.0, "facts": known.to_json()})
    for frame in frames:
        recorder.put(frame, keep=len(frame.tensors) > 0)
    recorder.close()
    return recorder.run


def simple_run(names, steps=20, seed=0, every=10, **columns):
    """Norms that are known: those of `norms_of`. The threshold is 1."""
    norms = norms_of(len(names), steps, seed)
    frames = [frame_of(step, names, norms[step], every=every, **columns) for step in range(steps)]
    return run_of(frames, facts(names))


def norms_of(count, steps, seed=0):
    return 10 ** np.random.default_rng(seed).normal(-1, 0.5, (steps, count))


def frame_of(step, names, norm, every=10, optimizer="adam", **columns):
    counts = histogram(len(names), step) if step % every == 0 else None
    whole = float(np.sqrt((np.asarray(norm) ** 2).sum()))
    return Frame(
        step,
        optimizer,
        time=float(step),
        loss=2.0 / (1 + step),
        lr=0.1,
        grad_norm=whole,
        grad_norm_post=min(1.0, whole),
        clip_threshold=1.0,
        clipped=whole > 1.0,
        tensors=table(names, norm, counts, **columns),
    )


def line_named(ax, text):
    """The one line of the axes that the legend calls so."""
    found = [line for line in ax.get_lines() if line.get_label() == text]
    assert len(found) == 1, (text, [line.get_label() for line in ax.get_lines()])
    return found[0]


def legend_texts(ax):
    legend = ax.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]
