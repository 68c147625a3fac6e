"""The plan of a bench run: an immutable value, and the parsing of its words on the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .. import allreduce
from .._util.suggestions import did_you_mean
from ..errors import InvalidArgument
from .collectives import COLLECTIVES, Collective

DTYPES = {"float16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8}  # bytes per element
ALIASES = {"half": "float16", "float": "float32", "double": "float64"}  # nccl-tests' words
ALL = "all"  # of the dtypes
OPS = ("sum", "prod", "min", "max", "avg")
PLACES = ("out", "in", "both")
DEVICES = ("cpu", "gpu")
BOUNDED_DTYPES = ("float32", "float64")
FIELDS = ("smooth", "turbulence", "noise")  # generated
FILE = ".npy"  # ends the name of a field in a file
BOUNDED_ALGORITHMS = ("auto", "two_hops")  # of the error-bounded all-reduce, each measured
MOST_SIZES = 10_000  # more are of no use, and soon exceed the memory
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class Plan:
    """One run of the bench."""

    sizes: tuple[int, ...]  # bytes: see `Collective.blocks`
    algorithms: tuple[str, ...] = ()  # of the dense collective; the first is the baseline
    schemes: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # of the error-bounded all-reduce
    relative: bool = False  # bounds are shares of the field's range
    data: str = ""  # of FIELDS, or a file; only with ``bounds``
    collective: str = "allreduce"
    dtype: str = "float32"  # or "all", one after the other
    op: str = "sum"  # "avg": the sum, then a division by the number of ranks
    root: int = 0  # of bcast; of pingpong the rank that begins
    place: str = "out"  # "in": the result replaces the input; "both": one after the other
    device: str = "cpu"
    seed: int = 1
    shuffle: bool = True  # implementations take turns in a random order; else in a rotating one
    check: bool = True
    warmup: int = 10  # untimed rounds per size; fewer if they would take long
    iters: int | None = None  # timed rounds; None: decided by the next three
    target_ci: float | None = None  # percent: end when half the 95 % interval of every median is at most this
    min_time: float = 0.2  # minimum seconds per implementation, without target_ci
    max_time: float = 5.0  # maximum seconds per size, all implementations together
    cycles: int = 1  # number of times all of it is measured, one cycle after the other
    agg_iters: int | None = None  # steps per barrier; None: the default of the collective
    timeout: float | None = None  # seconds after which a step counts as hung; 0 or None: never

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", ALIASES.get(self.dtype, self.dtype))
        words = {"collective": COLLECTIVES, "dtype": (*DTYPES, ALL), "op": OPS, "place": PLACES, "device": DEVICES}
        for name, choices in words.items():
            if getattr(self, name) not in choices:
                raise InvalidArgument(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name, least in (("min_time", 0), ("max_time", 0), ("warmup", 0), ("iters", 1), ("timeout", 0), ("seed", 0),
                            ("root", 0), ("cycles", 1), ("agg_iters", 1), ("target_ci", 0)):
            value = getattr(self, name)
            if value is not None and not least <= value < float("inf"):  # refuses NaN too
                raise InvalidArgument(f"{name} must be a number from {least}, got {value}")
        if not self.sizes:
            raise InvalidArgument("nothing to measure: --sizes names no size")
        if not self.algorithms and not self.schemes:
            raise InvalidArgument("nothing to measure: give --algorithm or --scheme")
        self._check_collective()
        self._check_bounds()

    def _check_collective(self) -> None:
        what = self.what
        known = (*what.algorithms(), *what.lossy)
        for name in self.algorithms:
            if name not in known:
                raise allreduce.unknown_algorithm(name, known, f" for {self.collective}")
        if self.lossy and (not self.dtype.startswith(("float", ALL)) or self.op not in ("sum", "avg")):
            raise InvalidArgument(f"{', '.join(self.lossy)} add or average floating-point numbers, got dtype "
                                  f"{self.dtype} and op {self.op}: choose other algorithms")
        if self.schemes and not what.schemes:
            takers = [name for name, one in COLLECTIVES.items() if one.schemes]
            raise InvalidArgument(f"only {' and '.join(takers)} take --scheme, got it for {self.collective}")
        if self.schemes and not self.dtype.startswith(("float", ALL)):
            raise InvalidArgument(f"schemes compress floating-point gradients, got dtype {self.dtype}")
        if self.op == "avg" and not self.dtype.startswith(("float", ALL)):
            raise InvalidArgument(f"avg divides and needs a floating-point dtype, got {self.dtype}: choose another op")
        if self.place != "out" and not what.in_place:
            raise InvalidArgument(f"{self.collective} has no choice of place, got place {self.place!r}")
        if self.op != "sum" and not what.reduces:
            raise InvalidArgument(f"{self.collective} does not reduce, got op {self.op!r}")

    def _check_bounds(self) -> None:
        """Check bounds and data; without data, the field is smooth."""
        for bound in self.bounds:
            if not 0 < bound < math.inf:  # refuses NaN too
                raise InvalidArgument(f"bound must be a positive finite number, got {bound:g}")
        if not self.bounds:
            if self.data or self.relative:
                raise InvalidArgument(f"--{'data' if self.data else 'relative'} belongs to an error bound: give --bound"
                                      ", such as --bound 1e-4")
            return
        if not self.data:
            object.__setattr__(self, "data", FIELDS[0])
        if self.data not in FIELDS and not self.data.endswith(FILE):
            raise InvalidArgument(f"--data must be one of {', '.join(FIELDS)}, or the name of a {FILE} file, got "
                                  f"{self.data!r}{did_you_mean(self.data, FIELDS)}")
        for name, given, allowed in (("collective", self.collective, ("allreduce",)),
                                     ("--dtype", self.dtype, BOUNDED_DTYPES), ("--op", self.op, ("sum", "avg"))):
            if given not in allowed:
                raise InvalidArgument(f"with --bound, {name} must be {' or '.join(allowed)}, got {given}")

    def check_job(self, size: int) -> None:
        """Raise InvalidArgument if the plan does not fit a job of ``size`` ranks."""
        if size < self.what.least_ranks:
            raise InvalidArgument(f"{self.collective} needs at least {self.what.least_ranks} ranks, got {size}: "
                                  f"start it with mpirun -n {self.what.least_ranks}")
        if self.root >= size:
            raise InvalidArgument(f"root must be a rank, 0 to {size - 1}, got {self.root}")

    @property
    def what(self) -> Collective:
        """The properties of the collective."""
        return COLLECTIVES[self.collective]

    @property
    def lossy(self) -> tuple[str, ...]:
        """The algorithms that round."""
        return tuple(name for name in self.algorithms if name in self.what.lossy)

    @property
    def places(self) -> tuple[str, ...]:
        """The places to measure, one after the other."""
        return ("out", "in") if self.place == "both" else (self.place,)

    @property
    def steps_per_barrier(self) -> int:
        """Number of steps behind one barrier."""
        return self.agg_iters or self.what.agg_iters

    @property
    def parts(self) -> tuple[Plan, ...]:
        """The plan of each dtype; only floating-point ones if values must be divided, rounded or compressed."""
        if self.dtype != ALL:
            return (self,)
        floats_only = bool(self.schemes) or bool(self.lossy) or self.op == "avg"
        return tuple(replace(self, dtype=name) for name in DTYPES if name.startswith("float") or not floats_only)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the implementations."""
        bounded = (bounded_name(name, bound, self.relative) for bound in self.bounds for name in BOUNDED_ALGORITHMS)
        return (*self.algorithms, *bounded, *self.schemes)

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return DTYPES[self.dtype]

    def count(self, nbytes: int, size: int = 1) -> int:
        """Elements per vector, or per rank's block, in (about) ``nbytes`` over ``size`` ranks; at least one."""
        return max(1, nbytes // self.itemsize // (size if self.what.blocks else 1))

    def cut_sizes(self, size: int) -> dict[int, list[int]]:
        """For each size that is not a whole number of elements (over ``size`` ranks), the sizes measured instead."""
        blocks = size if self.what.blocks else 1
        found = {nbytes: sorted({part.count(nbytes, size) * part.itemsize * blocks for part in self.parts})
                 for nbytes in self.sizes}  # fmt: skip
        return {nbytes: measured for nbytes, measured in found.items() if measured != [nbytes]}


def bounded_name(algorithm: str, bound: float, relative: bool) -> str:
    """The name of an error-bounded all-reduce.

    >>> bounded_name("two_hops", 1e-4, True)
    'two_hops bound=0.0001 relative'
    """
    return f"{algorithm} bound={bound:g}{' relative' if relative else ''}"


def parse_bounds(texts: Iterable[str]) -> tuple[float, ...]:
    """The bounds in comma-separated lists.

    >>> parse_bounds(["1e-2,1e-4", "3"])
    (0.01, 0.0001, 3.0)
    """
    try:
        return tuple(dict.fromkeys(map(float, split_names(texts))))
    except ValueError as error:
        raise InvalidArgument(f"bound must be a positive finite number such as 1e-4: {error}") from None


def parse_size(text: str) -> int:
    """Bytes in ``64``, ``64K``, ``1.5M``, ``2GiB``: units are powers of 1024.

    >>> parse_size("1.5M"), show_size(1572864)
    (1572864, '1.5 MiB')
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    nbytes = float(match[1]) * UNITS[match[2].upper()] if match else 0.0
    if not 1 <= nbytes < math.inf:
        raise InvalidArgument(f"a size is a number of bytes above 0, such as 4096, 64K or 1.5M; got {text!r}")
    return int(nbytes)


def show_size(nbytes: int) -> str:
    """``nbytes`` in the unit that leaves the fewest digits, exact if one unit is exact."""
    for unit in ("G", "M", "K"):
        scaled = nbytes / UNITS[unit]
        if scaled >= 1:
            return f"{scaled:.4g} {unit}iB"
    return f"{nbytes} B"


def size_range(least: int, most: int, factor: float, step: int | None = None) -> tuple[int, ...]:
    """``least``, ``least * factor``, ... up to ``most``; with ``step`` ``least``, ``least + step``, ...

    >>> size_range(4, 100, 4), size_range(4, 10, 2, step=3)
    ((4, 16, 64), (4, 7, 10))
    """
    if least > most:
        raise InvalidArgument(f"--min-bytes must not be above --max-bytes, got {least} and {most}")
    if not 1 < factor < float("inf"):
        raise InvalidArgument(f"--step-factor must be above 1, got {factor:g}")
    count = (most - least) // step if step is not None else math.log(most / least, factor)
    if count >= MOST_SIZES:
        raise InvalidArgument(f"from {show_size(least)} to {show_size(most)} there would be more than "
                              f"{MOST_SIZES} sizes to measure: take larger steps")
    if step is not None:
        return tuple(range(least, most + 1, step))
    sizes, size = [], float(least)
    while size <= most:
        sizes.append(int(size))
        size *= factor
    return tuple(dict.fromkeys(sizes))


def split_schemes(texts: Iterable[str]) -> tuple[str, ...]:
    """The schemes in comma-separated lists; a piece ``name=value`` is another option of the scheme before it.

    >>> split_schemes(["dense,topk:density=0.01,beta=0.5", "scalecom"])
    ('dense', 'topk:density=0.01,beta=0.5', 'scalecom')
    """
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
