"""Codecs write values as bytes. One per file, chosen by declared name.

`mpicomp.schemes.interfaces.Codec` documents the verbs.

Decoded values of a vector, on one rank:

    >>> import numpy as np
    >>> from mpi4py import MPI
    >>> import mpicomp
    >>> comm, u = mpicomp.Comm(MPI.COMM_SELF), np.array([3.0, -1.0, 0.5, -1.5])
    >>> for codec in ("one-bit", "sign", "natural,seed=1", "stochastic,unit=1,seed=1"):
    ...     print(mpicomp.Reducer(comm, f"qsgd:codec={codec}").reduce(u))
    [ 1.75 -1.25  1.75 -1.25]
    [ 1.5 -1.5  1.5 -1.5]
    [ 2.  -1.   0.5 -1. ]
    [ 3. -1.  1. -1.]
"""

from .blocks import Blocks
from .fixed import Fixed
from .float import Float
from .induced import Induced
from .levels import Levels
from .natural import Natural
from .one_bit import OneBit
from .scaled_integer import ScaledInteger
from .sign import Sign
from .stochastic import Stochastic
from .ternary import Ternary

CODECS = {part.name: part for part in (Float, OneBit, Sign, Levels, Ternary, Stochastic, Natural, ScaledInteger, Fixed,
                                       Induced, Blocks)}

# What parts of users' own can be made from, beside the registry.
__all__ = ["CODECS"]
