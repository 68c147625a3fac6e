"""A step of a scheme on one rank, without MPI."""

from __future__ import annotations

from mpicomp.reducer.context import context_of
from mpicomp.reducer.layout import Bucket
from mpicomp.schemes import Scheme
from mpicomp.schemes.interfaces import StepContext
from mpicomp.schemes.parts import Parts
from mpicomp.schemes.workers import Workers


class OneRank:
    """A communicator that is never asked for more than the sum of one rank."""

    rank, size, one_node, slow = 0, 1, True, False

    def allreduce_in_place(self, x: object, *rest: object) -> None:
        """One rank's is the sum."""


def step_of(text: str, bucket: Bucket, workers: int = 1) -> tuple[StepContext, Parts]:
    """The first step of a scheme on the arrays of a bucket, and its parts."""
    scheme = Scheme.parse(text)
    parts = scheme.parts(workers)
    per_tensor = scheme.options["layers"] == "per-tensor"
    ctx = context_of(bucket, OneRank(), Workers.equal(workers, 1), parts, per_tensor, 0, "native", True)
    return ctx.at_step(0), parts
