"""Reducers whose ranks end a step with different parts of one mean: FSDP's shards."""

from __future__ import annotations

from collections.abc import Callable

from ..comm.interfaces import Communicator
from ..comm.safety.collective_errors import run_collectively
from ..errors import InvalidArgument
from ..ops.device import at_home
from ..schemes.exchanges.pieces import FirstHop
from ..schemes.parts import Parts
from ..schemes.registry import Scheme
from ..schemes.timing import Trace
from ..types import Array
from .layout import Arrays
from .levels import OneLevel, Result
from .reducer import Reducer


class Apart(OneLevel):
    """Ranks hold different parts of the mean: a part that one of them refuses is refused by all."""

    def __init__(self, comm: Communicator) -> None:
        self._comm = comm

    def together(self, work: Callable[[], Result], may_refuse: bool) -> Result:
        return run_collectively(self._comm, work) if may_refuse else work()


class ReplicaReducer(Reducer):
    """Average one shard over its replicas.

    The communicator's ``agree`` and ``fail_together`` must reach the ranks of all shards, so that a step that one
    shard refuses is refused by all.
    """

    def _made_levels(self, slices: bool) -> OneLevel:
        return Apart(self.comm)


class ShardReducer(ReplicaReducer):
    """Average vectors over all ranks; each rank gets its own piece of the mean: a reduce-scatter by a scheme.

    Sums are in the dtype of computation, in the order of the ranks. Errors of the ranks' codes go to error memory, if
    the scheme has one, which is as long as the whole vector.

    Parameters
    ----------
    comm, scheme, nonfinite, trace
        As in ``Reducer``; a scheme of ``for_shards``.
    """

    def __init__(self, comm: Communicator, scheme: str | Scheme, *, nonfinite: str = "raise",
                 trace: Trace | None = None) -> None:
        super().__init__(comm, run_collectively(comm, lambda: for_shards(scheme)), nonfinite=nonfinite, trace=trace)

    def _made_parts(self, memories: int) -> Parts:
        return super()._made_parts(memories)._replace(exchange=FirstHop())

    def reduce_scatter(self, vector: Arrays, out: Array) -> None:
        """Write this rank's piece of the mean of ``vector`` into ``out`` (collective).

        Parameters
        ----------
        vector : array, 1-D, or dict of one
            Not modified. Rank r owns the r-th of equal pieces; if the length is not a multiple of the number of ranks,
            the first ones have one element more.
        out : array, 1-D
            Of the length of the piece.
        """
        with at_home(vector):
            mean = self.reduce_sparse(vector)
            out[...] = 0 if self.stats.skipped else mean.values


def for_shards(scheme: str | Scheme) -> Scheme:
    """The scheme as a reduce-scatter runs it; refuse one that cannot.

    Raises
    ------
    InvalidArgument
        It selects, its codes do not travel by pieces, or its memory makes results of single ranks.
    """
    parsed = Scheme.parse(scheme)
    if parsed.part_names["exchange"] == "dense":
        parsed = parsed.replace(exchange="pieces")
    if parsed.part_names["exchange"] != "pieces":
        raise InvalidArgument("shards without replicas need a scheme that sends all elements by exchange=pieces (int8, "
                              f"int4, fp8, onebit, half, dense, or qsgd:exchange=pieces and the like), got {scheme}: "
                              "take one of these, or a mesh of replicas and shards, which takes any scheme but auto")
    if parsed.diverges:
        raise InvalidArgument(f"shards without replicas need memory=none or residual, got {scheme}: its memory gives "
                              "each rank a result of its own")
    if parsed.options["dense"] != "none":
        raise InvalidArgument(f"shards without replicas need dense=none, got {scheme}: ranks exchange whole groups of "
                              "parameters")
    check_one_level(parsed)
    return parsed


def check_one_level(scheme: Scheme) -> None:
    """Refuse a scheme whose ranks would not all do the same in a step."""
    if scheme.options["nodes"] == "yes":
        raise InvalidArgument(f"shards need nodes=no, got {scheme}: for two levels take a mesh of replicas and shards, "
                              "with the shards on one node")
    if scheme.chooses:
        raise InvalidArgument(f"shards need one scheme, got {scheme}, which would choose for each of them: take the "
                              "scheme that stats.chosen of an earlier run reports")
