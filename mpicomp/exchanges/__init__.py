"""Exchanges: how ranks agree on coordinates and add their values. One a file, chosen by declared name.

Every exchange has three verbs, in the order of a step: ``select`` (local: choose what this rank chooses; for each
worker the number of non-finite values it found), ``compress`` (what each local worker sends) and ``exchange`` (move and
add; the mean).
"""

from .dense import Dense
from .gather import Gather
from .leader import Leader

EXCHANGES = {part.name: part for part in (Dense, Leader, Gather)}
