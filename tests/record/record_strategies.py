"""Any frame that there can be."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from gradmedic.frame import INTEGER_COLUMNS, TENSOR_COLUMNS, Frame, TensorTable

numbers = st.floats(width=64)
maybe = st.none() | numbers
names = st.text(max_size=12)


@st.composite
def tables(draw):
    keys = tuple(draw(st.lists(names, max_size=4, unique=True)))
    columns = {}
    for name in draw(st.sets(st.sampled_from(TENSOR_COLUMNS))):
        if name == "status":
            columns[name] = draw(hnp.arrays(np.int64, len(keys), elements=st.integers(0, 2)))
        elif name in INTEGER_COLUMNS:
            columns[name] = draw(hnp.arrays(np.int64, len(keys), elements=st.integers(0, 2**62)))
        else:
            columns[name] = draw(hnp.arrays(np.float64, len(keys), elements=numbers))
    histogram = draw(st.none() | hnp.arrays(np.int64, (len(keys), 64), elements=st.integers(0, 2**40)))
    return TensorTable(keys, columns, histogram)


@st.composite
def frames(draw, step):
    return Frame(
        step=step,
        optimizer=draw(st.sampled_from(["G", "D", "дискриминатор"])),
        time=draw(st.floats(0, 1e10)),
        loss=draw(maybe),
        lr=draw(maybe),
        lrs=tuple(draw(st.lists(numbers, max_size=3))),
        grad_norm=draw(maybe),
        grad_norm_post=draw(maybe),
        clip_scale=draw(numbers),
        clip_threshold=draw(maybe),
        clipped=draw(st.booleans()),
        clip_frequency=draw(numbers),
        skipped=draw(st.booleans()),
        skip_reason=draw(st.none() | names),
        loss_scale=draw(maybe),
        nonfinite=draw(st.integers(0, 2**62)),
        micro_batches=draw(st.integers(0, 99)),
        stale_grads=draw(st.booleans()),
        step_seconds=draw(maybe),
        overhead_seconds=draw(numbers),
        logged=draw(st.dictionaries(names, numbers, max_size=3)),
        tensors=draw(tables()),
    )
