"""Facts and files between ranks: bytes in plain MPI buffers, JSON for facts, never pickle."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

_PIECE = 1 << 22  # bytes of a file in flight: bounds the memory of sender and receiver
_TAG = 31_416


def broadcast_json(comm: Any, value: Any) -> Any:
    """The value of rank 0, on every rank."""
    if comm.size == 1:
        return value
    data = np.frombuffer(json.dumps(value).encode(), np.uint8)
    length = np.array([len(data)], np.int64)
    comm.Bcast(length, root=0)
    data = data.copy() if comm.rank == 0 else np.empty(length[0], np.uint8)
    comm.Bcast(data, root=0)
    return json.loads(data.tobytes())


def gather_json(comm: Any, value: Any) -> list[Any]:
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


def send_file(comm: Any, path: Path, nbytes: int, dest: int) -> None:
    """Send the first ``nbytes`` bytes of a file in pieces.

    What cannot be read is sent as zeros: the receiver must not be left waiting, and will see that they are no journal.
    """
    piece = np.empty(min(_PIECE, nbytes), np.uint8)
    file = _opened(path, "rb")
    for begin in range(0, nbytes, _PIECE):
        part = piece[: min(_PIECE, nbytes - begin)]
        part[:] = 0
        if not isinstance(file, OSError):
            with suppress(OSError):
                file.readinto(part)
        comm.Send(part, dest=dest, tag=_TAG)
    _close(file)


def receive_file(comm: Any, path: Path, nbytes: int, source: int) -> OSError | None:
    """Receive what ``send_file`` sends. A full disk is returned, not raised: the sender must not be left waiting."""
    piece = np.empty(min(_PIECE, nbytes), np.uint8)
    file = _opened(path, "wb")
    failure = file if isinstance(file, OSError) else None
    for begin in range(0, nbytes, _PIECE):
        part = piece[: min(_PIECE, nbytes - begin)]
        comm.Recv(part, source=source, tag=_TAG)
        try:
            if failure is None:
                file.write(part)
        except OSError as error:
            failure = error
    return _close(file) or failure


def _opened(path: Path, mode: str) -> Any:
    try:
        return path.open(mode)
    except OSError as error:
        return error


def _close(file: Any) -> OSError | None:
    try:
        if not isinstance(file, OSError):
            file.close()
    except OSError as error:
        return error
    return None
