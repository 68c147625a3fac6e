"""Codecs: how a value is written on the wire. One a file, chosen by declared name.

``encode`` gives the codes of one worker's values, ``decode`` what a receiver reads from them (also given as bytes);
both take the ``Place`` of the values and the step. Codes that are ``addable`` may be summed by an all-reduce; where
all workers must use one scale for that (``shares_scale``), ``peak`` and ``share`` settle it first. A codec that
``asks_threshold`` needs a selector with a ``threshold(step)`` where its own option ``lam`` is not given.
"""

from ._common import SelfContained
from .fixed import Fixed
from .float import Float
from .induced import Induced
from .levels import Levels
from .natural import Natural
from .one_bit import OneBit
from .scaled_integer import ScaledInteger
from .sign import Sign
from .stochastic import Stochastic
from .ternary import Ternary

CODECS = {part.name: part for part in (Float, OneBit, Sign, Levels, Ternary, Stochastic, Natural, ScaledInteger, Fixed,
                                       Induced)}

# What parts of users' own can be made from, beside the registry.
__all__ = ["CODECS", "SelfContained"]
