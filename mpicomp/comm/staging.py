"""Device arrays through pinned host memory, in pieces: copies both ways overlap MPI's messages."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .._util.partition import pieces
from ..ops.device import Device, ready
from ..types import Array

PIECE_BYTES = 4 << 20  # default of MPICOMP_STAGE_BYTES
DEPTH = 3  # buffers: one is filled, one is used by MPI, one is emptied


class Stage:
    """Pinned buffers of one device. Pieces have the same length on all ranks, since each is a message of its own."""

    def __init__(self, device: Device, piece_bytes: int = PIECE_BYTES):
        self.device, self.piece_bytes = device, piece_bytes
        self._pinned: list[np.ndarray] = []

    def run(
        self, flat: Array, work: Callable[[np.ndarray, int], None], outward: bool = True, back: bool = True
    ) -> None:
        """Call ``work(host, begin)`` on every piece of ``flat`` in turn, while its neighbours are copied.

        Piece i+1 travels to the host and piece i-1 back to the device while piece i is worked on.
        """
        ready(flat)
        length = max(1, self.piece_bytes // flat.itemsize)
        bounds = list(pieces(0, flat.size, length))
        hosts: list[np.ndarray] = [np.empty(0)] * DEPTH
        fetched: list[object] = [None] * DEPTH
        returned: list[object] = [None] * DEPTH

        def fetch(index: int) -> None:
            self._wait(returned, index % DEPTH)  # the buffer may still be on its way to the device
            part = flat[slice(*bounds[index])]
            host = hosts[index % DEPTH] = self._buffer(index % DEPTH)[: part.nbytes].view(flat.dtype)
            if outward:
                fetched[index % DEPTH] = self.device.start_to_host(host, part)

        try:
            for index in range(len(bounds) + 1):
                if index < len(bounds):
                    fetch(index)
                if index > 0:
                    slot = (index - 1) % DEPTH
                    self._wait(fetched, slot)
                    work(hosts[slot], bounds[index - 1][0])
                    if back:
                        part = flat[slice(*bounds[index - 1])]
                        returned[slot] = self.device.start_to_device(part, hosts[slot])
        finally:  # also after an error: the next vector gets the same buffers
            for slot in range(DEPTH):
                self._wait(fetched, slot)
                self._wait(returned, slot)

    def _wait(self, copies: list[object], slot: int) -> None:
        if copies[slot] is not None:
            self.device.wait(copies[slot])
            copies[slot] = None

    def _buffer(self, slot: int) -> np.ndarray:
        while len(self._pinned) <= slot:
            self._pinned.append(self.device.pinned(self.piece_bytes))
        return self._pinned[slot]

    def to_host(self, flat: Array) -> np.ndarray:
        """Return a copy of ``flat`` in ordinary host memory."""
        host = np.empty(flat.size, flat.dtype)

        def keep(part: np.ndarray, begin: int) -> None:
            host[begin : begin + part.size] = part

        self.run(flat, keep, back=False)
        return host

    def to_device(self, flat: Array, host: np.ndarray) -> None:
        """Copy ``host`` into ``flat``."""

        def fill(part: np.ndarray, begin: int) -> None:
            part[...] = host[begin : begin + part.size]

        self.run(flat, fill, outward=False)

    def on_device(self, host: np.ndarray, like: Array) -> Array:
        """Return a copy of ``host`` on the device of ``like``, in its dtype."""
        result = self.device.empty(host.size, like)
        self.to_device(result, host)
        return result
