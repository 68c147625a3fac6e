"""Codecs: how a value is written on the wire. One a file, chosen by declared name.

``encode`` gives the codes of one worker's values, which it may not write into (they may be the caller's gradient);
``decode`` gives what a receiver reads from codes (also given as bytes). Both take the ``Place`` of the values and the
step. Codes that are ``addable`` may be summed by an all-reduce; where all workers must use one scale for that
(``shares_scale``), ``peak`` and ``share`` settle it first. A codec that ``asks_threshold`` needs a selector with a
``threshold(step)`` where its own option ``lam`` is not given; one with a ``check_workers(total)`` refuses there what it
cannot serve, before the first step.

What a receiver reads of a vector, on one rank:

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

from ._common import SelfContained
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
                                       Induced)}

# What parts of users' own can be made from, beside the registry.
__all__ = ["CODECS", "SelfContained"]
