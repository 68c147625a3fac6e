"""The array primitives in plain NumPy: obvious and slow, the oracle of :mod:`.cpu` and :mod:`.gpu`.

Satisfies :class:`mpicomp.ops.protocol.Ops`. The docstrings here define the results of all modules, bit by bit; sums may
differ in their order of addition.
"""

from ..arguments import Key
from ..host import *
from .base import *
from .block_codes import *
from .bounded import *
from .lists import *
from .low_rank import *
from .many import *
from .quantise import *
from .random import *
from .search import *
from .selection import *
from .sketch import *
