"""The array primitives on CUDA devices: launchers of the kernels in ``*.cu``, through CuPy.

Satisfies :class:`mpicomp.ops.protocol.Ops`, with the results of :mod:`.oracle`. Kernels run on the device of their
arrays, on its current stream. A function that has to answer (an index list, a count) or to refuse an index list waits
for the device, unless the list was made or examined here; the others only queue.
"""

from ..host import index_dtype as index_dtype
from .base import *
from .block_codes import *
from .bounded import *
from .chunks import *
from .coded import *
from .cuda_runtime import to_host as to_host
from .lists import *
from .low_rank import *
from .many import *
from .quantise import *
from .random import *
from .search import *
from .selection import *
from .sketch import *
from .unions import *
