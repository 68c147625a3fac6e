"""Exchanges move what workers send and add it up. One per file, chosen by declared name.

`mpicomp.schemes.interfaces.Exchange` documents their verbs: ``choose`` (local), ``encode`` and ``combine``.
"""

from .agreed import Agreed
from .balanced import Balanced
from .dense import Dense
from .fastest import Fastest
from .gather import Gather
from .leader import Leader
from .low_rank import LowRank
from .pieces import Pieces
from .sketch import Sketch
from .tree_merge import Merge

EXCHANGES = {part.name: part for part in (Dense, Leader, Gather, Merge, Balanced, Agreed, LowRank, Pieces, Sketch,
                                          Fastest)}

# What parts of users' own can be made from, beside the registry.
__all__ = ["EXCHANGES"]
