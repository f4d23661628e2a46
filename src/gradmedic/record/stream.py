"""Arrow IPC streams as bytes: an encoder that can be asked for what it has written so far, and a tolerant decoder.

A record that was torn off by a crash, zeroed by a file system or overwritten by garbage costs the batches that it hit
and no others. The decoder therefore finds the messages itself; each begins with FF FF FF FF and a length, at a
multiple of 8 bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa

_MESSAGE = b"\xff\xff\xff\xff"
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
#: What compresses well, and what compresses a small batch, and is read again, in a fraction of the time.
TIGHT, QUICK = "zstd", "lz4"
#: Arrow writes a batch in some sixty pieces. Each would have to wait for the interpreter's lock.
_SINK_BYTES = 1 << 16
_READ = pa.ipc.IpcReadOptions(use_threads=False)


class StreamEncoder:
    """Turns record batches of one schema into the bytes of an Arrow IPC stream, batch by batch.

    Every stream carries a random mark in its schema, so that a reader that goes on where it stopped can tell whether
    the file has been replaced meanwhile.

    Args:
        schema: of all batches.
        codec: `TIGHT` or `QUICK`.
    """

    def __init__(self, schema: pa.Schema, codec: str = TIGHT) -> None:
        self._pieces = _Pieces()
        self._sink = pa.BufferedOutputStream(pa.PythonFile(self._pieces, mode="w"), _SINK_BYTES)
        marked = schema.with_metadata({"gradmedic.stream": secrets.token_hex(8)})
        # Threads of Arrow's own pool do not survive a fork.
        options = pa.ipc.IpcWriteOptions(compression=pa.Codec(codec, _LEVELS.get(codec)), use_threads=False)
        self._writer = pa.ipc.new_stream(self._sink, marked, options=options)

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """Return the bytes that add `batch` to the stream; the first ones include the schema."""
        self._writer.write_batch(batch)
        return self._taken()

    def end(self) -> bytes:
        """Return the bytes that end the stream."""
        self._writer.close()
        return self._taken()

    def _taken(self) -> bytes:
        self._sink.flush()
        return self._pieces.take()


_LEVELS = {TIGHT: 1}


class _Pieces:
    """A file object that keeps what is written to it until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(self._parts[-1])

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def take(self) -> bytes:
        data = b"".join(self._parts)
        self._parts.clear()
        return data


@dataclass(slots=True)
class Decoded:
    """What `decode` could read.

    Attributes:
        batches: the record batches, in order.
        header: schema and dictionaries so far, which `decode` needs to go on from `position`.
        position: byte after the last whole message.
        ended: the stream has its end mark.
        lost: ranges [start, stop) of bytes that could not be read.
    """

    batches: list[pa.RecordBatch] = field(default_factory=list)
    header: bytes = b""
    position: int = 0
    ended: bool = False
    lost: list[tuple[int, int]] = field(default_factory=list)


def decode(data: bytes, header: bytes = b"") -> Decoded:
    """Read all that can be read of a stream, or of a piece of one that follows `header`; never raises for bad data.

    Args:
        data: the bytes; those of a file that is being written may end anywhere.
        header: what an earlier `Decoded.header` gave, when `data` begins at its position.
    """
    out = Decoded(header=header)
    batches: list[tuple[bytes, int, int]] = []  # header in force, start, stop
    for kind, start, stop in _messages(data, out):
        if kind == "record batch":
            batches.append((out.header, start, stop))
        else:
            out.header += data[start:stop]
    _read_batches(data, batches, out)
    return out


def _messages(data: bytes, out: Decoded) -> Iterator[tuple[str, int, int]]:
    """Yield (kind, start, stop) of each message; go on behind what is broken."""
    at, source = 0, pa.BufferReader(data)
    while at < len(data):
        if data[at : at + 8] == END_OF_STREAM:
            at, out.ended = at + 8, True
            break
        kind, stop = _message_at(data, source, at)
        if kind:
            yield kind, at, stop
            at = out.position = stop
            continue
        following = _next_message(data, source, at + 8)
        out.lost.append((at, following))
        at = following
    out.position = at if out.ended else out.position
    if out.ended and at < len(data):
        out.lost.append((at, len(data)))


def _message_at(data: bytes, source: pa.BufferReader, at: int) -> tuple[str, int]:
    if data[at : at + 4] != _MESSAGE:
        return "", at
    try:
        source.seek(at)
        message = pa.ipc.read_message(source)
        stop = source.tell()
    except (pa.ArrowException, OSError, EOFError, ValueError):
        return "", at
    return (message.type, stop) if at < stop <= len(data) else ("", at)


def _next_message(data: bytes, source: pa.BufferReader, at: int) -> int:
    while 0 <= (at := data.find(_MESSAGE, at)) < len(data):
        if at % 8 == 0 and (data[at : at + 8] == END_OF_STREAM or _message_at(data, source, at)[0]):
            return at
        at += 1
    return len(data)


def _read_batches(data: bytes, batches: list[tuple[bytes, int, int]], out: Decoded) -> None:
    if not batches:
        return
    if not out.lost or out.lost[0][0] >= batches[-1][2]:  # nothing broken between them
        try:
            out.batches = _read(batches[0][0] + data[batches[0][1] : batches[-1][2]])
            return
        except (pa.ArrowException, OSError, ValueError):
            pass
    for header, start, stop in batches:
        try:
            out.batches += _read(header + data[start:stop])
        except (pa.ArrowException, OSError, ValueError):
            out.lost.append((start, stop))


def _read(stream: bytes) -> list[pa.RecordBatch]:
    with pa.ipc.open_stream(stream, options=_READ) as reader:
        batches = list(reader)
    for batch in batches:
        batch.validate(full=True)  # a zeroed body decodes into arrays that point beyond their buffers
    return batches
