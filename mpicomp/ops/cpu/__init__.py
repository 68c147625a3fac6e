"""The array primitives on the CPU: compiled, vectorised, holding no interpreter lock.

Satisfies :class:`mpicomp.ops.protocol.Ops`, with the results of :mod:`.oracle`. The environment variable
``MPICOMP_ISA`` (``avx512``, ``avx2``, ``baseline``) overrides the choice of instruction set.
"""

from .. import extension  # before what it looks for
from .._cpu import *
from ..arguments import Key
from ..host import *
from .bounded import *
from .composed import *
from .each_span import *
from .few_bits import *
from .kept_arrays import *
