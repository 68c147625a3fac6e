"""Exchanges: how ranks agree on coordinates and add their values. One a file, chosen by declared name.

Every exchange has three verbs, in the order of a step: ``select`` (local: choose what this rank chooses; for each
worker the number of non-finite values it found), ``compress`` (what each local worker sends) and ``exchange`` (move
and add; the mean). An exchange is ``early`` if what is sent is known after ``compress``; else ``compress`` gives []
and the result of ``exchange`` tells. It ``takes`` selectors that select ``all``, ``some``, ``any``, or ``counted``
ones (with a target k), or those that can be ``agreed`` on; and ``any``, ``addable`` or ``float`` ``codecs``. State
that it keeps from step to step goes through ``state`` and ``load``, and changes in ``exchange`` alone.
"""

from ._stateless import Stateless
from .agreed import Agreed
from .balanced import Balanced
from .dense import Dense
from .gather import Gather
from .leader import Leader
from .low_rank import LowRank
from .pieces import Pieces
from .sketch import Sketch
from .tree_merge import Merge

EXCHANGES = {part.name: part for part in (Dense, Leader, Gather, Merge, Balanced, Agreed, LowRank, Pieces, Sketch)}

# What parts of users' own can be made from, beside the registry.
__all__ = ["EXCHANGES", "Stateless"]
