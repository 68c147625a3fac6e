"""Codecs: how a value is written on the wire. One a file, chosen by declared name.

``encode`` gives the codes of one worker's values, ``decode`` what a receiver reads from them (also given as bytes);
both take the ``Place`` of the values and the step. Codes that are ``addable`` may be summed by an all-reduce; where
all workers must use one scale for that (``shares_scale``), ``peak`` and ``share`` settle it first.
"""

from .float import Float

CODECS = {part.name: part for part in (Float,)}
