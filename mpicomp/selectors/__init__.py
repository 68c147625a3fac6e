"""Selectors: which coordinates of the compensated gradient are sent. One a file, chosen by declared name."""

from .all import All
from .chunk_max import ChunkMax
from .threshold import Threshold
from .top_k import TopK

SELECTORS = {part.name: part for part in (All, ChunkMax, Threshold, TopK)}
