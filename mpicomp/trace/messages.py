"""JSON values and files sent between ranks: bytes in plain MPI buffers, never pickle."""

from __future__ import annotations

import json
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from ..comm.comm import Comm

_PIECE = 1 << 22  # bytes of a file in flight: bounds the memory of sender and receiver
_TAG = 31_416

J = TypeVar("J")  # a value that JSON can hold


def broadcast_json(comm: Comm, value: J) -> J:
    """Broadcast rank 0's value."""
    if comm.size == 1:
        return value
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = np.array([len(data)], np.int64)
    comm.Bcast(length, root=0)
    data = data.copy() if comm.rank == 0 else np.empty(length[0], np.uint8)
    comm.Bcast(data, root=0)
    received: J = json.loads(data.tobytes())
    return received


def gather_json(comm: Comm, value: J) -> list[J]:
    """Gather the values of all ranks, in rank order, on rank 0; the other ranks get an empty list."""
    if comm.size == 1:
        return [value]
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    counts = np.zeros(comm.size, np.int64)
    comm.Gather(np.array([len(data)], np.int64), counts, root=0)
    flat = np.empty(counts.sum(), np.uint8)
    comm.Gatherv(data, [flat, counts] if comm.rank == 0 else None, root=0)
    if comm.rank != 0:
        return []
    return [json.loads(part.tobytes()) for part in np.split(flat, np.cumsum(counts)[:-1])]


def send_file(comm: Comm, path: Path, nbytes: int, dest: int) -> None:
    """Send the first ``nbytes`` bytes of a file in pieces.

    Bytes that cannot be read are sent as zeros: the receiver is not left waiting, and rejects them as no journal.
    """
    piece = np.empty(min(_PIECE, nbytes), np.uint8)
    with ExitStack() as stack:
        file = None
        with suppress(OSError):
            file = stack.enter_context(path.open("rb"))
        for begin in range(0, nbytes, _PIECE):
            part = piece[: min(_PIECE, nbytes - begin)]
            part[:] = 0
            if file is not None:
                with suppress(OSError):
                    file.readinto(part.data)
            comm.Send(part, dest=dest, tag=_TAG)


def receive_file(comm: Comm, path: Path, nbytes: int, source: int) -> OSError | None:
    """Receive a file of `send_file`. A full disk is returned, not raised: the sender is not left waiting."""
    piece = np.empty(min(_PIECE, nbytes), np.uint8)
    failure = _written(path, b"", "wb")
    for begin in range(0, nbytes, _PIECE):
        part = piece[: min(_PIECE, nbytes - begin)]
        comm.Recv(part, source=source, tag=_TAG)
        failure = failure or _written(path, part.data, "ab")
    return failure


def _written(path: Path, content: bytes | memoryview, mode: str) -> OSError | None:
    try:
        with path.open(mode) as file:
            file.write(content)
    except OSError as error:
        return error
    return None
