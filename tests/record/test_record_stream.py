import numpy as np
import pytest
from record_samples import frame

from gradmedic.record.arrays import to_numpy
from gradmedic.record.rows import RowBuilder
from gradmedic.record.schema import TENSORS
from gradmedic.record.stream import QUICK, TIGHT, StreamEncoder, decode


@pytest.fixture(scope="module", params=[TIGHT, QUICK])
def stream(request):
    """Bytes of six batches of one step each, and where each ends."""
    encoder, rows = StreamEncoder(TENSORS, request.param), RowBuilder()
    data, ends = b"", []
    for step in range(6):
        # The third batch brings a new name, and so a new dictionary.
        data += encoder.encode(rows.tensors([(frame(step, tensors=3 + step // 3), step)]))
        ends.append(len(data))
    return data, ends, data + encoder.end()


def steps_of(decoded):
    return [int(to_numpy(batch.column("step"))[0]) for batch in decoded.batches]


def test_all_is_read_and_nothing_is_lost(stream):
    for data, ended in ((stream[0], False), (stream[2], True)):
        decoded = decode(data)
        assert steps_of(decoded) == list(range(6))
        assert decoded.lost == []
        assert decoded.ended == ended
        assert decoded.position == len(data)


def test_truncated_anywhere_loses_only_the_torn_batch(stream):
    data, ends, _ = stream
    for cut in range(0, len(data), 13):
        decoded = decode(data[:cut])
        whole = sum(end <= cut for end in ends)
        assert steps_of(decoded) == list(range(whole))
        lost = sum(stop - start for start, stop in decoded.lost)
        assert decoded.position + lost == cut


@pytest.mark.parametrize("filling", [0, 255, 171])
def test_an_overwritten_tail_loses_only_what_it_hit(stream, filling):
    data, ends, _ = stream
    for cut in range(0, len(data) - 8, 211):
        decoded = decode(data[:cut] + bytes([filling]) * (len(data) - cut))
        whole = sum(end <= cut for end in ends)
        assert steps_of(decoded)[:whole] == list(range(whole))
        assert len(decoded.batches) <= whole + 1  # what was hit in its padding is whole
        assert decoded.lost


def test_damage_in_the_middle_costs_the_batch_that_it_hit(stream):
    data, ends, _ = stream
    rng = np.random.default_rng(0)
    for at in range(6):
        start = ends[at] - 400
        noise = rng.integers(0, 256, 400, dtype=np.uint8).tobytes()
        decoded = decode(data[:start] + noise + data[ends[at] :])
        expected = [step for step in range(6) if step != at]
        assert steps_of(decoded) == expected
        assert decoded.lost


def test_random_damage_never_raises(stream):
    data = stream[2]
    rng = np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(data)
        for at in rng.integers(0, len(data), rng.integers(1, 6)):
            damaged[at] = rng.integers(0, 256)
        decode(bytes(damaged))
    for length in (0, 1, 7, 8, 100, 5000):
        assert decode(rng.integers(0, 256, length, dtype=np.uint8).tobytes()).batches == []


def test_reading_goes_on_where_it_stopped(stream):
    _, _, whole = stream
    for cut in range(0, len(whole), 97):
        first = decode(whole[:cut])
        rest = decode(whole[first.position :], first.header)
        assert steps_of(first) + steps_of(rest) == list(range(6))
        assert rest.lost == []
