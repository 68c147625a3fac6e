"""Error memories hold back what one step does not send and add it in the next. One per file, chosen by declared name.

Every worker has its own; arrays that go dense have none. `mpicomp.schemes.interfaces.Memory` documents the verbs.

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

from ..interfaces import DenseMean
from .adam_update import AdamUpdate
from .dense import DenseMomentum
from .ef21 import EF21
from .error_reset import ErrorReset
from .kept import ErrorMemory
from .momentum_corrected import MomentumCorrected
from .none import NoMemory
from .residual import Residual
from .shifted import Shifted
from .update import Update

MEMORIES = {part.name: part for part in (NoMemory, Residual, MomentumCorrected, Update, AdamUpdate, EF21, ErrorReset,
                                         Shifted)}  # fmt: skip

# What parts of users' own can be made from, beside the registry.
__all__ = ["MEMORIES", "DenseMean", "DenseMomentum", "ErrorMemory"]
