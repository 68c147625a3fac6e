"""The context of a reducer's steps, made once its arrays are known."""

from __future__ import annotations

import math

from ..comm.interfaces import Communicator
from ..ops.protocol import Ops
from ..schemes.interfaces import StepContext
from ..schemes.parts import Parts
from ..schemes.timing import PhaseTimer, Trace
from ..schemes.values import Once
from ..schemes.workers import Workers
from .layout import Bucket

# By itemsize: sums, norms and products of smaller magnitudes are finite, whatever the number of elements and workers.
ROOM = {4: 1e30, 8: 1e140}
# By result dtype: the largest finite magnitude, and the least that rounds to infinity.
RESULTS = {"float16": (65504.0, 65520.0), "bfloat16": ((2 - 2**-7) * 2.0**127, (2 - 2**-8) * 2.0**127)}


def context_of(bucket: Bucket, comm: Communicator, workers: Workers, parts: Parts, per_tensor: bool, seed: int,
               algorithm: str, check_finite: bool, trace: Trace | None = None, ops: Ops | None = None,
               of_layout: Once | None = None) -> StepContext:
    """The context of steps on the arrays of ``bucket``; ``at_step`` gives that of each step.

    Parameters
    ----------
    per_tensor : bool
        The selector treats each array by itself.
    check_finite : bool
        NaN and infinity are looked for.
    ops, of_layout : optional
        Other operations than those of the arrays' device, and another rank's results, in simulations.
    """
    remembers = any(memory.remembers for memory in parts.memories)
    plain = not remembers and parts.codec.name == "float" and parts.exchange.name == "dense"
    return StepContext(
        comm=comm, workers=workers, first_worker=workers.first(comm.rank),
        selector=parts.selector, codec=parts.codec, schedule=parts.schedule, seed=seed, algorithm=algorithm,
        ops=ops or bucket.ops, n=bucket.n, dtype=bucket.compute, tensors=bucket.tensors,
        spans=[(start, stop) for start, stop, _ in bucket.tensors] if per_tensor else [(0, bucket.n)],
        densities=bucket.densities if per_tensor else [None],
        plain=plain, remembers=remembers, limit=math.inf if plain else ROOM[bucket.compute.itemsize],
        check_finite=check_finite,
        result=RESULTS.get(bucket.dtype_name), timer=PhaseTimer(trace), trace=trace, of_layout=of_layout or Once(),
    )  # fmt: skip
