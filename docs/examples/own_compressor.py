"""Register a selector and use it in a scheme: mpirun -n 2 python own_compressor.py"""

import numpy as np
from mpi4py import MPI

import mpicomp
from mpicomp.schemes.options import Option


@mpicomp.register_part("selector")
class RoundRobin:
    """Select every ``stride``-th element, shifted by one in each step."""

    name = "round-robin"
    reference = "an example"
    options = (Option("stride", int, 100, "elements from one sent to the next", low=1),)
    finds_nonfinite = False  # the reducer then checks all elements for NaN

    def __init__(self, stride):
        self.stride = stride

    def select(self, u, ctx):
        return np.arange(ctx.number % self.stride, u.n, self.stride, dtype=ctx.ops.index_dtype(u.n))

    def expand(self, wire, ctx):
        return wire


if __name__ == "__main__":
    comm = mpicomp.Comm(MPI.COMM_WORLD)
    reducer = mpicomp.Reducer(comm, "topk:selector=round-robin,stride=4")  # memory, codec and exchange of topk
    total = sum(reducer.reduce(np.arange(8.0)) for _ in range(4))
    if comm.rank == 0:
        print("after 4 steps:", total)  # each element was sent once, with its accumulated memory
