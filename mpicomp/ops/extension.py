"""Look for the compiled extension, and say what to do if it is missing.

With ``MPICOMP_OPS=reference`` it may be missing (``AVAILABLE`` is False); else every module that needs it raises.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from ..errors import MissingExtra

AVAILABLE = find_spec("mpicomp.ops._cpu") is not None
if not AVAILABLE and os.environ.get("MPICOMP_OPS") != "reference":
    place, python = Path(__file__).parents[1], f"Python {sys.version_info.major}.{sys.version_info.minor}"
    raise MissingExtra(
        f"mpicomp was imported from {place}, where nothing is compiled for {python}: start Python in another folder "
        "if that is a clone and mpicomp is installed elsewhere; else pip install --editable . "
        "(without a compiler: MPICOMP_OPS=reference, NumPy and slow)"
    )
