"""What a bench run measures: an immutable value, and the words it is written in on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..errors import InvalidArgument

DTYPES = ("float16", "float32", "float64", "int32", "int64")
PLACES = ("out", "in")
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Plan:
    """One run of the bench."""

    sizes: tuple[int, ...]  # bytes of the dense vector
    algorithms: tuple[str, ...] = ()  # dense all-reduce algorithms; the first is the baseline
    schemes: tuple[str, ...] = ()
    collective: str = "allreduce"
    dtype: str = "float32"
    place: str = "out"  # "in": the result replaces the input
    seed: int = 1
    check: bool = True
    warmup: int = 10  # untimed rounds before a size; fewer where they would take long
    iters: int | None = None  # timed rounds; None: as many as min_time and max_time ask for
    min_time: float = 0.2  # seconds every implementation is timed at least
    max_time: float = 5.0  # seconds a size may take, all implementations together
    timeout: float | None = None  # seconds after which one step counts as hung

    def __post_init__(self) -> None:
        for name, choices in (("dtype", DTYPES), ("place", PLACES)):
            if getattr(self, name) not in choices:
                raise InvalidArgument(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name, least in (("min_time", 0), ("max_time", 0), ("warmup", 0), ("iters", 1), ("timeout", 0), ("seed", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value < float("inf"):  # refuses NaN too
                raise InvalidArgument(f"{name} must be a number from {least}, got {value}")
        if not self.algorithms and not self.schemes:
            raise InvalidArgument("nothing to measure: give --algorithm or --scheme")
        if self.schemes and not self.dtype.startswith("float"):
            raise InvalidArgument(f"schemes compress floating-point gradients, got dtype {self.dtype}")

    def count(self, nbytes: int) -> int:
        """Elements in a vector of (about) ``nbytes``; at least one."""
        return max(1, nbytes // np.dtype(self.dtype).itemsize)


def parse_size(text: str) -> int:
    """Bytes in ``64``, ``64K``, ``1.5M``, ``2GiB``: units are powers of 1024."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    nbytes = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if nbytes < 1:
        raise InvalidArgument(f"a size is a number of bytes above 0, such as 4096, 64K or 1.5M; got {text!r}")
    return nbytes


def show_size(nbytes: int) -> str:
    """``nbytes`` in the unit that leaves the fewest digits, exact where one unit is exact."""
    for unit in ("G", "M", "K"):
        scaled = nbytes / UNITS[unit]
        if scaled >= 1:
            return f"{scaled:.4g} {unit}iB"
    return f"{nbytes} B"


def size_range(least: int, most: int, factor: float) -> tuple[int, ...]:
    """``least``, ``least * factor``, ... up to ``most``."""
    if least > most:
        raise InvalidArgument(f"--min-bytes must not be above --max-bytes, got {least} and {most}")
    if not 1 < factor < float("inf"):
        raise InvalidArgument(f"--step-factor must be above 1, got {factor:g}")
    sizes, size = [], float(least)
    while size <= most:
        sizes.append(int(size))
        size *= factor
    return tuple(dict.fromkeys(sizes))


def split_schemes(texts: Iterable[str]) -> tuple[str, ...]:
    """The schemes in comma-separated lists; a piece ``name=value`` is another option of the scheme before it."""
    schemes: list[str] = []
    for text in texts:
        for piece in filter(None, (part.strip() for part in text.split(","))):
            if schemes and "=" in piece and ":" not in piece:
                joint = "," if ":" in schemes[-1] else ":"
                schemes[-1] += joint + piece
            else:
                schemes.append(piece)
    return tuple(dict.fromkeys(schemes))


def split_names(texts: Iterable[str]) -> tuple[str, ...]:
    """The names in comma-separated lists, each once."""
    return tuple(dict.fromkeys(filter(None, (part.strip() for text in texts for part in text.split(",")))))
