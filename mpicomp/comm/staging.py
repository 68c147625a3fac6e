"""Device arrays through pinned host memory.

Vectors go in pieces, so that copies both ways overlap MPI's messages. Gathered and exchanged messages go as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from .._util.partition import pieces
from ..ops.device import Device, ready
from ..types import Array

PIECE_BYTES = 4 << 20  # default of MPICOMP_STAGE_BYTES
PIECE_RANKS = 8  # ranks for which a piece has that length: a rank's part of a piece is a message
LEAST_BYTES, MOST_BYTES = 16, 32 << 20  # a complex number at least
DEPTH = 3  # buffers: one is filled, one is used by MPI, one is emptied


def piece_bytes(wanted: int, ranks: int) -> int:
    """Return the bytes per piece for so many ranks; ``wanted`` bytes are for PIECE_RANKS or fewer."""
    return max(wanted, LEAST_BYTES, min(MOST_BYTES, wanted * -(-ranks // PIECE_RANKS)))


class Stage:
    """Pinned buffers of one device, which are kept.

    Pieces have the same length on all ranks, since each is a message of its own.
    """

    def __init__(self, device: Device, piece_bytes: int = PIECE_BYTES):
        self.device, self.piece_bytes = device, piece_bytes
        self._pinned: list[np.ndarray] = []
        self._messages = np.empty(0, np.uint8)  # pinned, too: messages that travel as a whole

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

    def gathered(self, flat: Array, counts: list[int], rank: int, gather: Callable[[np.ndarray, np.ndarray], None]
                 ) -> Array:
        """Return the concatenated arrays of all ranks on the device of ``flat``.

        ``gather(mine, whole)`` gathers bytes in pinned memory; ``mine`` is this rank's place in ``whole``.
        """
        begin, nbytes = sum(counts[:rank]) * flat.itemsize, sum(counts) * flat.itemsize
        whole, result = self._room(nbytes), self.device.empty(sum(counts), flat)
        mine = whole[begin : begin + flat.nbytes]
        ready(flat)
        self._copy_all([(mine, flat.view(np.uint8))], self.device.start_to_host)
        gather(mine, whole)
        self._copy_all([(result.view(np.uint8), whole)], self.device.start_to_device)
        return result

    def exchanged(self, outgoing: Mapping[int, Array], incoming: Mapping[int, int], like: Array,
                  send: Callable[[dict[int, np.ndarray], dict[int, np.ndarray]], None]) -> dict[int, Array]:
        """Return the bytes received by rank, on the device of ``like``; ``incoming`` are their lengths.

        ``send(outgoing, incoming)`` exchanges bytes in pinned memory. Copies of one direction are queued together.
        """
        lengths = [*(x.nbytes for x in outgoing.values()), *incoming.values()]
        # before the wait: work that is queued may still use this memory
        results = {rank: self.device.empty(nbytes, like.view(np.uint8)) for rank, nbytes in incoming.items()}
        rooms = iter(np.split(self._room(sum(lengths)), np.cumsum(lengths)[:-1]))
        out = {rank: next(rooms) for rank in outgoing}
        into = {rank: next(rooms) for rank in incoming}
        ready(like)
        self._copy_all([(out[rank], x) for rank, x in outgoing.items()], self.device.start_to_host)
        send(out, into)
        self._copy_all([(results[rank], into[rank]) for rank in incoming], self.device.start_to_device)
        return results

    def _copy_all(self, pairs: list[tuple[Array, Array]], start: Callable[[Array, Array], object]) -> None:
        """Queue copies of (target, origin), then wait for them."""
        for copy in [start(target, origin) for target, origin in pairs if target.size]:
            self.device.wait(copy)

    def _room(self, nbytes: int) -> np.ndarray:
        """Return so many bytes of pinned memory; valid until the next call."""
        if self._messages.size < nbytes:
            self._messages = self.device.pinned(1 << (nbytes - 1).bit_length())
        return self._messages[:nbytes]
