"""Exchanges: how ranks agree on coordinates and add their values. One a file, chosen by declared name.

Every exchange has two verbs, in the order of a step: ``compress`` (select and encode; returns what each local
worker sends) and ``exchange`` (move and add; returns the mean).
"""

from .dense import Dense
from .gather import Gather
from .leader import Leader

EXCHANGES = {part.name: part for part in (Dense, Leader, Gather)}
