"""Tagged messages between two ranks, on a communicator of their own: they meet no collective's."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from ctypes import py_object, pythonapi
from typing import cast

import numpy as np
from mpi4py import MPI

from ..errors import Disagreement
from ..ops.device import ready
from ..types import Array
from .comm import Comm
from .job import Intracomm
from .naps import Naps
from .transport import MAX_COUNT

# Requests and memory of messages whose owner has gone before they were complete: MPI goes on using the memory.
_ownerless: deque[tuple[MPI.Request, Array]] = deque()
AT_ONCE = 4  # that a call looks at
Py_IncRef, Py_DecRef = pythonapi.Py_IncRef, pythonapi.Py_DecRef


class Message:
    """A started message. Its memory, which it keeps, must not be used until it is complete.

    Parameters
    ----------
    comm : Comm
        Logs the wait, for the watchdog.
    name : str
        Name of the call in the log.
    expected : int or None
        Bytes to receive; None for a message that is sent.
    """

    def __init__(self, comm: Comm, request: MPI.Request, name: str, array: Array, expected: int | None) -> None:
        self._comm, self._request, self._name, self._expected = comm, request, name, expected
        self._array: Array | None = array  # mpi4py does not keep it
        Py_IncRef(py_object(array))  # for MPI_Finalize, which comes after the interpreter has freed everything
        self._status = MPI.Status()

    def __del__(self) -> None:
        if self._array is not None:
            _ownerless.append((self._request, self._array))

    @property
    def source(self) -> int:
        """The rank that sent the message."""
        return self._status.source

    def Test(self) -> bool:
        """Return True if the message is complete.

        Raises
        ------
        Disagreement
            It is shorter or longer than the memory to receive into.
        """
        if self._array is None:
            return True
        is_longer = False
        try:
            if not self._request.Test(self._status):
                return False
        except MPI.Exception as error:
            is_longer = error.Get_error_class() == MPI.ERR_TRUNCATE
            if not is_longer:
                raise
        Py_DecRef(py_object(self._array))
        self._array = None
        if self._expected is None:
            return True
        got = self._status.Get_elements(MPI.BYTE)  # also above 2^31, where Open MPI's count is undefined
        if is_longer or got != self._expected:
            raise Disagreement(f"{self._name}: expected {self._expected} bytes, rank {self._status.source} sent "
                               f"{'more' if is_longer else got}: give tensors of one shape and dtype on both sides")
        return True

    def Wait(self) -> bool:
        """Wait until the message is complete."""
        log = self._comm.log
        if log is None or self.Test():
            Naps(nothing).until_done(self)
            return True
        log.begin(self._name)
        log.may_be_uneven()
        try:
            Naps(nothing).until_done(self)
        finally:
            log.end()
        return True


class PointToPoint:
    """Messages between two ranks of ``comm``, which is duplicated; making and freeing it is collective."""

    def __init__(self, comm: Intracomm) -> None:
        self._comm = Comm(comm)

    def send(self, array: Array, rank: int, tag: int) -> Message:
        """Start to send a flat uint8 array to a rank."""
        release_complete()
        ready(array)
        request = self._comm.Isend(countable(array), rank, tag)
        return Message(self._comm, request, f"send to rank {rank}", array, None)

    def recv(self, array: Array, rank: int | None, tag: int) -> Message:
        """Start to receive into a flat uint8 array from a rank, or from any."""
        release_complete()
        ready(array)
        request = self._comm.Irecv(countable(array), MPI.ANY_SOURCE if rank is None else rank, tag)
        name = "receive from any rank" if rank is None else f"receive from rank {rank}"
        return Message(self._comm, request, name, array, array.nbytes)

    def free(self) -> None:
        """Free the communicator."""
        self._comm.Free()


def release_complete() -> None:
    """Release the memory of messages without an owner that are complete; looks at a few, in turn."""
    for _ in range(min(len(_ownerless), AT_ONCE)):
        with suppress(IndexError):  # another thread takes the rest
            request, array = _ownerless.popleft()
            complete = True
            with suppress(MPI.Exception):  # has no owner either
                complete = request.Test()
            if complete:
                Py_DecRef(py_object(array))
            else:
                _ownerless.append((request, array))


def countable(array: Array) -> Array:
    """Return bytes as longer elements if there are more than MPI can count."""
    return cast(Array, array.view(np.int64)) if array.size > MAX_COUNT and array.size % 8 == 0 else array


def nothing() -> None:
    """Listen to no other message between the tests of a wait."""
