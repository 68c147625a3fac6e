"""Selectors: which coordinates of the compensated gradient are sent. One a file, chosen by declared name.

``select`` gives a selection in the compact form it has on the wire, ``expand`` its ascending indices (None: all of
them), ``wire_like`` an empty array for one (None where only the selecting rank knows the length). ``finds_nonfinite``
says that NaN and infinity are selected before anything else, so that the selected values show whether a gradient is
finite.
"""

from .all import All
from .chunk_max import ChunkMax
from .threshold import Threshold
from .top_k import TopK

SELECTORS = {part.name: part for part in (All, ChunkMax, Threshold, TopK)}
