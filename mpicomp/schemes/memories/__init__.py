"""Error memories: what is kept back in one step and added in the next. One a file, chosen by declared name.

Every worker has its own. ``compensate`` gives the gradient with what was kept back; ``update`` works out what stays
of what was not sent, an iterator that does its work piece by piece, so that it can fill the time an exchange waits. A
memory changes in ``update`` alone, once all ranks have agreed on the step: one that fails before or is skipped leaves
it. ``silent`` says that a step is to send nothing at all (``silences`` that there are such steps), and ``local`` gives
what this worker adds to the common mean for its own rank (None: nothing, which is usual): a fresh array. Arrays that go
dense have no memory. One that ``takes_momentum`` may have a verb ``for_dense``, whose object (made from ``DenseMean``)
each rank keeps once, however many workers it has, and applies to their mean; what it keeps changes in ``keep`` alone.
``set_aside`` empties some spans of a memory before a step in which they take no part, as parameters without a gradient
do, and ``put_back`` fills them again after it.

With ``beta=1`` the smaller element of a gradient that does not change has its turn when it has grown; a low-pass
factor of 0.1 lets it grow slowly:

    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> comm, u = mpicomp.Comm(MPI.COMM_SELF), np.array([1.0, 0.5])
    >>> for beta in (1, 0.1):
    ...     reducer = mpicomp.Reducer(comm, f"topk:k=1,beta={beta}")
    ...     print([reducer.reduce(u).tolist() for _ in range(3)])
    [[1.0, 0.0], [1.0, 0.0], [0.0, 1.5]]
    [[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]
"""

from .dense import DenseMean, DenseMomentum
from .error_reset import ErrorReset
from .kept import ErrorMemory
from .momentum_corrected import MomentumCorrected
from .none import NoMemory
from .residual import Residual
from .shifted import Shifted
from .update import Update

MEMORIES = {part.name: part for part in (NoMemory, Residual, MomentumCorrected, Update, ErrorReset, Shifted)}

# What parts of users' own can be made from, beside the registry.
__all__ = ["MEMORIES", "DenseMean", "DenseMomentum", "ErrorMemory"]
