"""Arrays of NumPy and CuPy, and parts of lists of indices."""

from __future__ import annotations

from .ops.arguments import Array as Array
from .ops.arguments import dtype_name as dtype_name
from .ops.array_lists import address as address
from .ops.array_lists import overlap as overlap
from .ops.index_lists import Part as Part
from .ops.index_lists import joined as joined
from .ops.index_lists import parts_of as parts_of

