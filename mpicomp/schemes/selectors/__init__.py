"""Selectors choose the coordinates of the compensated gradient to send. One per file, chosen by declared name.

`mpicomp.schemes.interfaces.Selector` and ``AgreedSelector`` document the verbs.

    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> comm, u = mpicomp.Comm(MPI.COMM_SELF), np.array([3.0, 0.2, -4.0, 0.1, -0.3, 0.5])
    >>> for scheme in ("topk:k=2", "scalecom:chunk=3", "threshold:lam=0.3", "arctopk:row=2,width=1,k=1"):
    ...     print(mpicomp.Reducer(comm, scheme).reduce_sparse(u).indices)
    [0 2]
    [2 5]
    [0 2 4 5]
    [2 3]
"""

from ._by_span import DENSITY, Counted, K, Listed, Targeted
from .all import All
from .bins import Bins
from .chunk_max import ChunkMax
from .gaussian import Gaussian
from .random_k import RandomK
from .rows import Rows
from .sampled import Sampled
from .sidco import Sidco
from .threshold import Threshold
from .top_k import TopK

SELECTORS = {
    part.name: part
    for part in (All, Bins, ChunkMax, Gaussian, RandomK, Rows, Sampled, Sidco, Threshold, TopK)
}

# What parts of users' own can be made from, beside the registry.
__all__ = ["DENSITY", "SELECTORS", "Counted", "K", "Listed", "Targeted"]
