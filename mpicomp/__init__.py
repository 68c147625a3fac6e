"""MPI all-reduce, dense and compressed, on NumPy and CuPy arrays.

On one rank, which is its own mean; under ``mpirun`` the same lines run on all ranks of ``MPI.COMM_WORLD``:

    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> comm = mpicomp.Comm(MPI.COMM_SELF)
    >>> x = np.arange(4.0)
    >>> comm.Allreduce(MPI.IN_PLACE, x)  # mpi4py's call, by a faster schedule if there is one
    >>> reducer = mpicomp.Reducer(comm, "topk:density=0.25")
    >>> print(reducer.reduce(np.array([1.0, -5.0, 2.0, 4.0])))  # a quarter is sent, the rest is kept
    [ 0. -5.  0.  0.]
    >>> print(reducer.reduce(np.zeros(4)))  # and sent later
    [0. 0. 0. 4.]
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import checkpoint, errors, ops, optim, schemes, trace
    from . import torch as torch  # not in __all__: it needs PyTorch
    from .comm.allreduce_call import AVG
    from .comm.comm import Comm
    from .comm.job import launcher_mismatch
    from .comm.safety import survivors
    from .optim import rates
    from .reducer.reducer import Reducer
    from .schemes.registration import register_part, register_scheme
    from .schemes.registry import Scheme

# Loaded on first use: ``import mpicomp`` must start no MPI and import neither cupy nor h5py.
_HOME = {
    "AVG": ".comm.allreduce_call", "Comm": ".comm.comm", "launcher_mismatch": ".comm.job",
    "Reducer": ".reducer.reducer",
    "Scheme": ".schemes.registry", "register_part": ".schemes.registration", "register_scheme": ".schemes.registration",
}  # fmt: skip
_MODULES = {
    **{name: f".{name}" for name in ("checkpoint", "errors", "ops", "optim", "schemes", "trace")},
    "rates": ".optim.rates", "survivors": ".comm.safety.survivors",
}  # fmt: skip

__all__ = [
    "AVG", "Comm", "Reducer", "Scheme", "__version__", "checkpoint", "errors", "launcher_mismatch", "ops", "optim",
    "rates", "register_part", "register_scheme", "schemes", "survivors", "trace",
]  # fmt: skip

if not TYPE_CHECKING:  # else checkers of types would take every misspelt name for one that is found here

    def __getattr__(name: str) -> Any:
        try:
            if name in _HOME:
                return getattr(import_module(_HOME[name], __name__), name)
            if name in _MODULES or name == "torch":  # not in __all__: it needs PyTorch
                return import_module(_MODULES.get(name, ".torch"), __name__)
        except Exception:
            if "mpi4py.MPI" in sys.modules:  # the other ranks may wait for this one
                import_module(".comm.job", __name__).install_abort()
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
