"""What can be benched: one line a collective. Imports nothing heavy, so that --help knows them all."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .. import allreduce


class Collective(NamedTuple):
    """What the bench has to know of one collective."""

    target: str  # module with ``implementations(comm, plan, n)``
    summary: str
    algorithms: Callable[[], tuple[str, ...]]  # all, by default; the first is the baseline
    bus_factor: Callable[[int], float]  # busbw / algbw over p ranks, as in nccl-tests' PERFORMANCE.md
    agg_iters: int = 1  # steps behind one barrier unless asked otherwise
    least_ranks: int = 1
    blocks: bool = False  # the size counts one block for every rank, as in nccl-tests
    reduces: bool = False
    rooted: bool = False
    in_place: bool = False
    schemes: bool = False
    sizes: tuple[str, str] = ("1K", "64M")  # by default


def _allreduce() -> tuple[str, ...]:
    return ("native", *(name for name in allreduce.ALGORITHMS if name != "native"), "auto")


def _ours() -> tuple[str, ...]:
    """MPI's own call, and the verb of Comm, which chooses its schedule by itself."""
    return ("native", "auto")


def _native() -> tuple[str, ...]:
    return ("native",)


def _share_of_others(p: int) -> float:
    return (p - 1) / p


COLLECTIVES = {
    "allreduce": Collective(
        "mpicomp.bench.allreduce", "all-reduce, dense and compressed", _allreduce,
        lambda p: 2 * _share_of_others(p), reduces=True, in_place=True, schemes=True,
    ),
    "reduce_scatter": Collective(
        "mpicomp.bench.reduce_scatter", "MPI_Reduce_scatter_block; the size is that of all blocks", _native,
        _share_of_others, blocks=True, reduces=True, in_place=True,
    ),
    "allgather": Collective(
        "mpicomp.bench.allgather", "all-gather of equal blocks; the size is that of all blocks", _ours,
        _share_of_others, blocks=True, in_place=True,
    ),
    "bcast": Collective("mpicomp.bench.bcast", "broadcast from --root", _ours, lambda p: 1.0, rooted=True),
    "pingpong": Collective(
        "mpicomp.bench.pingpong", "half a round trip between --root and the rank half the job away", _ours,
        lambda p: 1.0, agg_iters=20, least_ranks=2, rooted=True,
    ),
    "schemes": Collective(
        "mpicomp.bench.schemes", "schemes: compressing and decompressing on each rank alone, and whole steps", _native,
        lambda p: 2 * _share_of_others(p), schemes=True, sizes=("1M", "16M"),
    ),
}  # fmt: skip
