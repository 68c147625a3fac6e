"""Imported before the compiled extension: says what to do where there is none, as in a clone that was not installed,
or where it refuses the instruction set that ``MPICOMP_ISA`` asks for.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from ..errors import InvalidArgument, MissingExtra

if find_spec("mpicomp.ops._cpu") is None:
    place, python = Path(__file__).parents[1], f"Python {sys.version_info.major}.{sys.version_info.minor}"
    raise MissingExtra(
        f"mpicomp was imported from {place}, where nothing is compiled for {python}: start Python in another folder "
        "if that is a clone and mpicomp is installed elsewhere; else pip install --editable ."
    )
try:
    import_module("mpicomp.ops._cpu")
except ImportError as error:
    if not str(error).startswith("MPICOMP_ISA"):
        raise
    raise InvalidArgument(str(error)) from None
