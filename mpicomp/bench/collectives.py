"""The table of collectives that the bench measures. Imports nothing heavy, so that --help can list them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .. import allreduce


class Collective(NamedTuple):
    """The properties of one collective that options and bandwidths depend on."""

    summary: str
    algorithms: Callable[[], tuple[str, ...]]  # all exact ones, the default; the first is the baseline
    bus_factor: Callable[[int], float]  # busbw / algbw over p ranks, as in nccl-tests' PERFORMANCE.md
    agg_iters: int = 1  # default number of steps per barrier
    least_ranks: int = 1
    blocks: bool = False  # the size counts one block per rank, as in nccl-tests
    reduces: bool = False
    rooted: bool = False
    in_place: bool = False
    schemes: bool = False
    lossy: tuple[str, ...] = ()  # further algorithms
    sizes: tuple[str, str] = ("1K", "64M")  # default range


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
        "all-reduce, dense and compressed", _allreduce, lambda p: 2 * _share_of_others(p),
        reduces=True, in_place=True, schemes=True, lossy=allreduce.LOSSY,
    ),
    "reduce_scatter": Collective(
        "MPI_Reduce_scatter_block; the size is that of all blocks", _native, _share_of_others,
        blocks=True, reduces=True, in_place=True,
    ),
    "allgather": Collective(
        "all-gather of equal blocks; the size is that of all blocks", _ours, _share_of_others,
        blocks=True, in_place=True,
    ),
    "alltoall": Collective(
        "all-to-all of equal blocks; the size is that of all blocks of one rank", _native, _share_of_others,
        blocks=True, in_place=True,
    ),
    "bcast": Collective("broadcast from --root", _ours, lambda p: 1.0, rooted=True),
    "pingpong": Collective(
        "half a round trip between --root and the rank half the job away", _ours, lambda p: 1.0,
        agg_iters=20, least_ranks=2, rooted=True,
    ),
    "schemes": Collective(
        "schemes: compression and decompression on each rank alone, and whole steps", _native,
        lambda p: 2 * _share_of_others(p), schemes=True, sizes=("1M", "16M"),
    ),
}  # fmt: skip
