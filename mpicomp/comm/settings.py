"""Settings of ``Comm`` from the environment: read by rank 0, the same on all ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
from mpi4py import MPI

from ..allreduce import ALGORITHMS, check_name
from ..allreduce.table import Row, Table, load
from ..errors import InvalidArgument
from ..ops import ops_for, threads
from .job import GPU_VARIABLE, gpu_path
from .safety.agreement import sides
from .staging import PIECE_BYTES

VARIABLE = "MPICOMP_TUNING"
REPRODUCIBLE_VARIABLE = "MPICOMP_REPRODUCIBLE"
NODE_VARIABLE = "MPICOMP_RANKS_PER_NODE"
ALGORITHM_VARIABLE = "MPICOMP_ALGORITHM"
CHECK_VARIABLE = "MPICOMP_CHECK"
STAGE_VARIABLE = "MPICOMP_STAGE_BYTES"
OPERATIONS_VARIABLE = "MPICOMP_OPS"
DEFAULTS = {VARIABLE: "", REPRODUCIBLE_VARIABLE: "0", NODE_VARIABLE: None, ALGORITHM_VARIABLE: "auto",
            CHECK_VARIABLE: "auto", STAGE_VARIABLE: str(PIECE_BYTES), GPU_VARIABLE: "auto"}  # fmt: skip
MOST_DIGITS = 18


class Settings(NamedTuple):
    """Settings from rank 0's environment, the same on all ranks.

    Launchers do not pass every variable to every host: ranks with settings of their own would wait for each other, or
    send unexpected messages.
    """

    table: Table
    node_limit: int  # the most ranks that count as one node; 0: all that share memory
    algorithm: str
    check: str
    reproducible: bool
    stage_bytes: int  # per piece of a device array on its way through the host
    gpu_path: tuple[str, str]  # path of device arrays to MPI, and the reason
    prefers_nccl: bool  # ``auto`` takes NCCL for device arrays if all ranks can: no path is requested

    def rows(self, ranks_per_node: int, nodes: int) -> dict[str, Row]:
        """Return the row of the table that fits the job, by device."""
        return {device: self.table.row(ranks_per_node, nodes, device) for device in ("cpu", "gpu")}


def job_settings(comm: MPI.Intracomm, reproducible: bool | None, wrong: str | None) -> Settings:
    """Return the settings of rank 0's environment (collective).

    A ``reproducible`` that is not None overrides its variable. ``wrong`` is this rank's error in a variable that may
    differ between ranks.

    Raises
    ------
    InvalidArgument
        On every rank: a variable has an invalid value, or names a table that rank 0 cannot read; or ranks differ in
        ``reproducible`` or in the operations that they loaded.
    """
    mine = {name: os.environ.get(name, default) for name, default in DEFAULTS.items()}
    path = os.environ.get(VARIABLE)
    content: str | None = None
    error: str | None = None
    if comm.Get_rank() == 0 and path:
        try:
            content = Path(path).read_text()
        except (OSError, UnicodeDecodeError) as caught:
            error = f"{VARIABLE}={path}: {getattr(caught, 'strerror', None) or caught}"
    texts, content, error = MPI.Intracomm.bcast(comm, (mine, content, error))
    if error:
        raise InvalidArgument(f"{error}: write a table with mpicomp tune, or unset {VARIABLE}")
    if texts[REPRODUCIBLE_VARIABLE] not in ("0", "1"):
        raise InvalidArgument(f"{REPRODUCIBLE_VARIABLE} must be 0 or 1, got {texts[REPRODUCIBLE_VARIABLE]!r}: "
                              "set or unset it")  # fmt: skip
    if texts[CHECK_VARIABLE] not in ("0", "1", "auto"):
        raise InvalidArgument(f"{CHECK_VARIABLE} must be 0, 1 or auto, got {texts[CHECK_VARIABLE]!r}: set or unset it")
    try:
        algorithm = check_name(texts[ALGORITHM_VARIABLE])
    except InvalidArgument as error:
        raise InvalidArgument(f"{ALGORITHM_VARIABLE}: {error}") from None
    settings = Settings(
        table=Table(()) if content is None else load(content, texts[VARIABLE], list(ALGORITHMS)),
        node_limit=0 if texts[NODE_VARIABLE] is None else number(texts, NODE_VARIABLE, "ranks"),
        algorithm=algorithm,
        check=texts[CHECK_VARIABLE],
        reproducible=texts[REPRODUCIBLE_VARIABLE] == "1" if reproducible is None else bool(reproducible),
        stage_bytes=number(texts, STAGE_VARIABLE, "bytes"),
        gpu_path=gpu_path(texts[GPU_VARIABLE]),
        prefers_nccl=texts[GPU_VARIABLE] == "auto",
    )
    operations = os.environ.get(OPERATIONS_VARIABLE, "")
    if operations not in ("", "reference"):
        wrong = wrong or f"{OPERATIONS_VARIABLE} must be reference, or not set, got {operations!r}"
    wrong = threads.read_environment() or wrong
    kind, reason = settled(comm, settings.gpu_path, reproducible, wrong)
    if kind == "none":
        from .gpu_probe import forced

        kind, reason = forced(comm, settings.gpu_path[0] == "none", reason)
    return settings._replace(gpu_path=(kind, reason))


def number(texts: dict[str, str], name: str, unit: str) -> int:
    """Return the positive number in a variable; raise InvalidArgument for other texts."""
    text = texts[name]
    if not (text.isdecimal() and len(text) <= MOST_DIGITS and int(text)):
        raise InvalidArgument(f"{name} must be a number of {unit}, 1 or more, got {text!r}: set or unset it")
    return int(text)


def settled(comm: MPI.Intracomm, path: tuple[str, str], reproducible: bool | None,
            wrong: str | None) -> tuple[str, str]:
    """Return the ``job.gpu_path`` of all ranks; compare the settings that must not differ (collective).

    If one rank's MPI takes no device memory, no rank passes any: a schedule that sends the whole array does not match
    one that sends its pieces.
    """
    wanted = -1 if reproducible is None else int(bool(reproducible))
    operations = ops_for(np.empty(0)).__name__
    codes = np.array([wanted, crc32(operations.encode()), path[0] == "direct"], np.int64)
    ends = np.concatenate([codes, -codes, [wrong is not None]])
    MPI.Intracomm.Allreduce(comm, MPI.IN_PLACE, ends, MPI.MAX)
    if (ends[:3] == -ends[3:6]).all() and not ends[6]:
        return path
    everyone = MPI.Intracomm.allgather(comm, (reproducible, operations, path, wrong))  # only now a list of all ranks
    wishes, loaded, paths, texts = zip(*everyone, strict=True)
    for rank, text in enumerate(texts):
        if text is not None:
            raise InvalidArgument(f"rank {rank}: {text}")
    if len(set(wishes)) > 1:
        raise InvalidArgument(f"reproducible must be the same on all ranks, got {list(wishes)} in the order of the "
                              "ranks")  # fmt: skip
    if len(set(loaded)) > 1:  # sums of squares differ in their last bits, and models would
        raise InvalidArgument(f"the operations must be the same on all ranks, got {'; '.join(sides(loaded))}: give all "
                              "of them the same MPICOMP_OPS, or none")  # fmt: skip
    return next((kind, f"on rank {rank} {reason}") for rank, (kind, reason) in enumerate(paths) if kind != "direct")
