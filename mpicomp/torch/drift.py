"""Find ranks whose models drift apart: hyper-parameters, numbers of steps or abandoned exchanges that differ."""

from __future__ import annotations

from itertools import zip_longest
from zlib import crc32

import numpy as np
import torch

from ..comm.comm import Comm
from ..comm.safety.agreement import sides
from ..errors import Disagreement

SCHEDULED = ("lr", "momentum", "betas", "weight_decay")  # what schedulers change
CHECKSUM_BYTES = 8
REMEDY = (
    "Give schedulers the same values on every rank (ReduceLROnPlateau the mean loss, comm.allreduce(loss) / "
    "comm.size); mpicomp.torch.broadcast_optimizer_state(optimizer, comm) gives every rank those of rank 0"
)


Compared = tuple[int, list[dict[str, object]]]  # the number of steps, and the hyper-parameters of each group


def compared(optimizer: torch.optim.Optimizer, steps: int) -> Compared:
    """Values that this rank compares with the others'."""
    return steps, [{name: plain(group[name]) for name in SCHEDULED if name in group}
                   for group in optimizer.param_groups]


def plain(value: object) -> object:
    """A number as a Python float, however a rank holds it; of anything else its type."""
    if type(value) is float:
        return value
    if isinstance(value, tuple | list):
        return tuple(plain(one) for one in value)
    try:
        return float(value)  # type: ignore[arg-type]  # if it is a number, which the exception tells
    except (TypeError, ValueError, RuntimeError):
        return type(value).__name__


def checksum(mine: object) -> np.ndarray:
    """Bytes whose maxima over the ranks show whether all ranks have the same: a checksum and its complement."""
    code = np.frombuffer(crc32(repr(mine).encode()).to_bytes(CHECKSUM_BYTES // 2, "little"), np.uint8)
    return np.concatenate([code, ~code])


def is_common(maxima: np.ndarray) -> bool:
    """Return True if all ranks had the checksum whose bytes' maxima these are."""
    greatest, least = np.split(maxima, 2)
    return bool((greatest == ~least).all())


def abandoned_alone(comm: Comm, mine: int) -> Disagreement:
    """The error of ranks that differ in the exchanges that a failed backward left behind (collective)."""
    counts = [f"{count} left without a step" for count in comm.allgather(mine)]
    return Disagreement("a backward has ended by an exception on some ranks alone: exchanges of different steps would "
                        f"mix. {'; '.join(sides(counts))}. Let the exception end the job, or catch it on every rank")


def disagreement(comm: Comm, mine: Compared) -> Disagreement:
    """The error of ranks that compared and differ (collective)."""
    everyone = comm.allgather(mine)
    steps = [f"{count} steps" for count, _ in everyone]
    if len(set(steps)) > 1:
        return Disagreement(f"the optimizer has not done the same number of steps on every rank. "
                            f"{'; '.join(sides(steps))}. After backward() call step() equally often on every rank; a "
                            "new DistributedOptimizer begins with rank 0's parameters")
    groups = [[", ".join(f"{name}={value}" for name, value in group.items()) for group in one] for _, one in everyone]
    number, theirs = next(
        (i, texts) for i, texts in enumerate(zip_longest(*groups, fillvalue="no such group")) if len(set(texts)) > 1
    )
    return Disagreement(f"the optimizer's hyper-parameters in group {number} differ. {'; '.join(sides(theirs))}. "
                        f"{REMEDY}")
