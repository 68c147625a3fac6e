"""Messages between pairs of ranks, as verbs of ``Comm``: any of several at once, device arrays staged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..ops import ops_for
from ..ops.device import device_of
from .buffers import check_flat
from .safety.call_log import logged
from .safety.checks import Checks


class PointToPoint(Checks):
    """Verbs for exchanges whose schedule is their own; mixed into ``Comm``."""

    @logged
    def send_and_receive(self, outgoing: Mapping[int, Any], incoming: Mapping[int, int], like: Any) -> dict[int, Any]:
        """Send flat arrays to ranks and receive from ranks, all at once.

        Parameters
        ----------
        outgoing : mapping of rank -> array
            Any dtype; an empty array is not sent.
        incoming : mapping of rank -> int
            Bytes expected from each; 0 expects no message.
        like : array
            Of the device the results are to be on.

        Returns
        -------
        dict of rank -> uint8 array
        """
        link, device = self._link or self._open(), device_of(like)
        if self._log is not None:
            self._log.uneven |= len(self._log.open) <= 1
        stage = self._reduction.stage(device) if device is not None and not link.takes_devices else None
        outward = {rank: check_flat(x, "x").view(np.uint8) for rank, x in outgoing.items() if x.size}
        if stage:
            outward = {rank: stage.to_host(x) for rank, x in outward.items()}
        empty = np.empty if stage else ops_for(like).empty
        received = {rank: empty(nbytes, np.uint8) for rank, nbytes in incoming.items()}
        with link.schedule:
            requests = [link.irecv(x, rank) for rank, x in received.items() if x.size]
            requests += [link.isend(x, rank) for rank, x in outward.items()]
            for request in requests:
                link.wait(request)
        if stage is None or device is None:
            return received
        on_device = {rank: device.empty(x.size, like.view(np.uint8)) for rank, x in received.items()}
        for rank, x in received.items():
            stage.to_device(on_device[rank], x)
        return on_device

    @logged
    def swap_lengths(self, lengths: list[int]) -> list[int]:
        """Tell every rank its one of ``lengths``, itself too; what each tells this one (by MPI's own all-to-all)."""
        link = self._link or self._open()
        self._verify("swap_lengths")
        theirs = np.empty(link.size, np.int64)
        link.check()
        link.comm.Alltoall(np.array(lengths, np.int64), theirs)
        link.count_modelled(8 * (link.size - 1))
        return theirs.tolist()

    @logged
    def lengths_of_all(self, length: int) -> list[int]:
        """The ``length`` of every rank."""
        link = self._link or self._open()
        self._verify("lengths_of_all")
        return link.gather_lengths(length)
