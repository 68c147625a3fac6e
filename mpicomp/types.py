"""Arrays of NumPy and CuPy, and parts of lists of indices."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from .ops.arguments import Array as Array
from .ops.array_lists import address as address
from .ops.array_lists import overlap as overlap
from .ops.index_lists import Part as Part
from .ops.index_lists import joined as joined
from .ops.index_lists import parts_of as parts_of


@lru_cache(64)
def dtype_name(dtype: np.dtype) -> str:
    """Name of a dtype, which NumPy works out anew at every use."""
    return dtype.name
