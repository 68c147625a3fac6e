"""Two levels of a simulated rank: the memory of its node, and the ranks at its place on the other nodes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import InvalidArgument
from ..types import Array
from .comm import Call, RecordingComm, Script, Single
from .ghost import Ghost, Tiled, as_array, as_ghost
from .link import LINE, RecordingLink, slice_of
from .tape import ACROSS

NUMBERS = np.dtype(np.int64)
HEAD = 8  # bytes of a length


@dataclass(frozen=True)
class OnNode(Single):
    """A verb in the memory of the node, on ``n`` elements."""

    verb: str
    n: int
    dtype: np.dtype

    def play(self, link: RecordingLink) -> None:
        vector = as_array(Ghost(link.ops, self.n, self.dtype))
        link.node.run(self.verb, vector, vector, "sum", self.dtype.name)


@dataclass(frozen=True)
class Between(Call):
    """A call among the ranks at one place on their nodes."""

    call: Call

    @property
    def among(self) -> int | None:
        return None if self.call.among is None else ACROSS

    def play(self, link: RecordingLink) -> None:
        across = link.across
        assert across is not None, "every node has as many ranks"
        self.call.play(across)


class RecordingAcross(RecordingComm):
    """The ranks at one place on their nodes."""

    def call(self, call: Call) -> None:
        super().call(Between(call))


class RecordingLevels:
    """The `mpicomp.comm.interfaces.Levels` of a simulated rank with the slice at this ``place``.

    All nodes are taken to be alike: what ranks of one find to be the ``largest`` of their numbers holds for the others.
    Slices of elements, not of whole cache lines, are taken to be ``alike``, too.
    """

    def __init__(self, comm: RecordingComm, script: Script, per_node: int, place: int, like: Script | None,
                 largest: list[list[int]] | None = None, alike: bool = False) -> None:
        if comm.size % per_node:
            raise InvalidArgument(f"nodes=yes is simulated on nodes with equally many ranks: expected a multiple of "
                                  f"{per_node} ranks, got {comm.size}")
        self._comm, self.nodes, self.slices, self.place = comm, comm.size // per_node, per_node, place
        self._script, self._largest, self._alike = script, largest, alike
        self.across = RecordingAcross(script, comm.rank // per_node, self.nodes, like, False, comm.slow)

    def slice_of(self, vector: Array) -> slice:
        return slice_of(vector.size, LINE if self._alike else vector.itemsize, self.slices, self.place)

    def largest(self, numbers: list[int]) -> list[int]:
        self._comm.call(OnNode("allreduce", len(numbers), NUMBERS))
        self._script.numbers.append(numbers)
        return self._largest[len(self._script.numbers) - 1] if self._largest else numbers

    def reduce_scatter(self, x: Array, total: Array, factor: float) -> None:
        self._comm.call(OnNode("reduce_scatter", x.size, x.dtype))

    def all_gather(self, x: Array) -> None:
        self._comm.call(OnNode("all_gather", x.size, x.dtype))

    def gather(self, x: Array, longest: int) -> Array:
        each = -(-(HEAD + longest * x.itemsize) // LINE) * LINE // x.itemsize
        self._comm.call(OnNode("all_gather", each * self.slices, x.dtype))
        return np.tile(x, self.slices) if isinstance(x, np.ndarray) else as_array(Tiled(as_ghost(x), self.slices))
