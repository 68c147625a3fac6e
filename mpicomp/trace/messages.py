"""Facts and files between ranks: bytes in plain MPI buffers, JSON for facts, never pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

_PIECE = 1 << 22  # bytes of a file in flight: bounds the memory of sender and receiver
_TAG = 31_416


def broadcast_json(comm, value: Any) -> Any:
    """The value of rank 0, on every rank."""
    if comm.size == 1:
        return value
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = np.array([len(data)], np.int64)
    comm.Bcast(length, root=0)
    data = data.copy() if comm.rank == 0 else np.empty(length[0], np.uint8)
    comm.Bcast(data, root=0)
    return json.loads(data.tobytes())


def gather_json(comm, value: Any) -> list[Any]:
    """The values of all ranks in rank order, on rank 0; an empty list elsewhere."""
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


def send_file(comm, path: Path, nbytes: int, dest: int) -> None:
    """Send the first ``nbytes`` bytes of a file in pieces."""
    with open(path, "rb") as file:
        for begin in range(0, nbytes, _PIECE):
            piece = file.read(min(_PIECE, nbytes - begin))
            comm.Send(np.frombuffer(piece, np.uint8), dest=dest, tag=_TAG)


def receive_file(comm, path: Path, nbytes: int, source: int) -> OSError | None:
    """Receive what ``send_file`` sends. A full disk is returned, not raised: the sender must not be left waiting."""
    failure: OSError | None = None
    piece = np.empty(min(_PIECE, nbytes), np.uint8)
    with open(path, "wb") as file:
        for begin in range(0, nbytes, _PIECE):
            part = piece[: min(_PIECE, nbytes - begin)]
            comm.Recv(part, source=source, tag=_TAG)
            try:
                file.write(part)
            except OSError as error:
                failure = failure or error
    return failure
