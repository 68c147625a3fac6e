"""Find the kernels in ``*.cu``, compile them once per device by CuPy's compiler, and launch them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import cache, cached_property, lru_cache, wraps
from hashlib import sha256
from itertools import product
from pathlib import Path
from threading import get_ident
from typing import Any, ParamSpec, SupportsInt, TypeVar

import numpy as np

from ...errors import MissingExtra
from .. import search
from ..arguments import MOST_ROWS, NOT_FINITE
from ..block_codes import BLOCK as BLOCK_CODES
from ..error_bound import ESCAPED
from . import kernel_cache

Array = Any  # cupy.ndarray
Kernel = Callable[[tuple[int, ...], tuple[int, ...], tuple[object, ...]], None]  # of grid, block and arguments
Given = ParamSpec("Given")
Result = TypeVar("Result")

SOURCES = Path(__file__).parent
THREADS = 256  # of a block
MAX_BLOCKS = 4096  # enough to fill any device; kernels loop over what is left
MAX_PIECES = 65536  # blocks that do one piece after another: so many that a device is full until nearly all are done
WARP = 32
PACK_BYTES = 16  # what one access moves: `Pack` in common.cuh
ROUNDS, TURNS = 4, 2  # packs that each thread of collect.cu reads at once, and how often for a tile
TILE_BYTES = TURNS * ROUNDS * PACK_BYTES * THREADS  # of a vector, for one block there
PIECE = 4096  # elements of a vector that a block of update.cu or many.cu takes at a time
DIGIT_BITS = 11  # of a magnitude, in one pass of top_k.cu
DIGIT_PIECE = 65536  # elements of a span for one block there
SAMPLE = 8192  # elements of a vector that a guess goes by
MOMENTS_PIECE = 16384  # elements of a span that a block adds up at a time
GROUP_PIECE = 16384  # elements of a long group in norms.cu
CODE_PIECE = 8192  # elements that a block of quantise.cu takes at a time
BITS_PIECE = 16384  # bits of a bitmap for one block of lists.cu
UNION_PIECE = 32 * THREADS  # bits that a block of union.cu looks at together
UNIT = 4  # neighbours that a thread of quantise.cu takes together
TEAM_MOST = 64  # elements for each thread of a team in norms.cu, at most: longer groups are cut into pieces
RANKS = (2, 4, 8, 16)  # columns of PowerSGD's kernels; others are filled up, and more go to CuPy's libraries
PANEL = 2048  # elements of p or q in a block's shared memory
LONGEST = 8192  # columns that a block of `project` adds up
PER_THREAD = 2  # `cudaStreamPerThread`, by which each thread means another stream
SKETCH_ROWS = (1, 3, 5, 7)  # medians of so many keep to registers; 0 stands for any other number

# Macros of the .cu files: what kernels share with their launchers, and with the rules in ../search.py.
SHARED = {
    "THREADS": THREADS, "WARP": WARP, "ROUNDS": ROUNDS, "TURNS": TURNS, "PIECE": PIECE, "DIGIT_BITS": DIGIT_BITS,
    "DIGIT_PIECE": DIGIT_PIECE, "SAMPLE": SAMPLE, "MOMENTS_PIECE": MOMENTS_PIECE, "GROUP_PIECE": GROUP_PIECE,
    "CODE_PIECE": CODE_PIECE, "UNIT": UNIT, "BITS_PIECE": BITS_PIECE, "UNION_PIECE": UNION_PIECE, "PANEL": PANEL,
    "LONGEST": LONGEST, "MOST_ROWS": MOST_ROWS, "NOT_FINITE": NOT_FINITE, "FEW": search.FEW, "MANY": search.MANY,
    "CORRECTIONS": search.CORRECTIONS, "DOWN": search.DOWN, "UP": search.UP, "RATIO": search.RATIO, "LOW": search.LOW,
    "HIGH": search.HIGH, "ESCAPED": ESCAPED, "BLOCK_CODES": BLOCK_CODES,
}  # fmt: skip
DEFINITIONS = tuple(f"-D{name}={value}" for name, value in SHARED.items())
OPTIONS = ("--std=c++17", "--fmad=false", *DEFINITIONS)  # no contraction: the bits of the NumPy oracle

REAL = {"float32": "float", "float64": "double"}
INDEX = {"int32": "int", "int64": "long long"}
POSITION = {"uint8": "unsigned char", "uint16": "unsigned short"}
INTEGER = {
    "int8": "signed char",
    "int16": "short",
    **INDEX,
    **POSITION,
    "uint32": "unsigned int",
    "uint64": "unsigned long long",
}
WORD = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}  # by bytes
CODE = {"int8": "signed char", "int16": "short", "int32": "int"}
HALF = {"float16": "Float16", "bfloat16": "BFloat16"}

# Types and numbers in the lines "// Instances:" of the .cu files, which name the templates that launchers use.
CHOICES: dict[str, Iterable[object]] = {
    "REAL": REAL.values(), "INDEX": INDEX.values(), "POSITION": POSITION.values(), "WORD": WORD.values(),
    "CODE": CODE.values(), "NUMBER": [*REAL.values(), *INTEGER.values()], "RANK": RANKS, "ROWS": (0, *SKETCH_ROWS),
}  # fmt: skip


def _instances(code: str) -> Iterator[str]:
    """The template instances that a .cu file is compiled for: each of its names for each of its arguments."""
    for names, arguments in re.findall(r"^// Instances: ([\w ]+)(?:<(.+)>)?$", code, re.MULTILINE):
        choices = [CHOICES.get(one) or one.split("|") for one in arguments.split(", ") if one]
        for name, *values in product(names.split(), *choices):
            yield f"{name}<{', '.join(map(str, values))}>" if values else name


KERNELS = {path.stem: list(_instances(path.read_text(encoding="utf-8"))) for path in sorted(SOURCES.glob("*.cu"))}


def source(family: str) -> str:
    """The text of ``<family>.cu`` with our headers put in, since CuPy's cache does not see headers."""
    text = (SOURCES / f"{family}.cu").read_text(encoding="utf-8")
    for header in SOURCES.glob("*.cuh"):
        text = text.replace(f'#include "{header.name}"', header.read_text(encoding="utf-8"))
    return text


class Runtime:
    """All that is needed of CuPy. Tests put one in its place that runs the kernels on the CPU."""

    @cached_property
    def xp(self) -> Any:
        try:
            import cupy
        except ImportError as error:
            raise MissingExtra(
                "arrays in CUDA memory need CuPy: pip install 'mpicomp[cuda13]' (or 'mpicomp[cuda12]')"
            ) from error
        return cupy

    def nccl(self) -> Any:
        """CuPy's NCCL, whose ``available`` is true if it is installed; CuPy 14 does not import it by itself."""
        assert self.xp is not None, "MissingExtra if there is no CuPy"
        from cupy.cuda import nccl

        return nccl

    def device(self, array: Array) -> AbstractContextManager[object]:
        return array.device

    def to_host(self, array: Array) -> np.ndarray:
        return self.xp.asnumpy(array)

    def address(self, array: Array) -> int:
        return array.data.ptr

    def current_device(self) -> int:
        return self.xp.cuda.runtime.getDevice()

    def stream(self) -> int:
        """The current device's current stream, as CUDA numbers it."""
        return self.xp.cuda.get_current_stream().ptr

    def kernel(self, family: str, name: str) -> Kernel:
        return self._functions(family, self.current_device())[name]

    @cache  # noqa: B019 (the one runtime lives as long as the process)
    def _functions(self, family: str, device: int) -> dict[str, Kernel]:
        path, names = self._compiled(family)
        module = self.xp.RawModule(path=path)
        return {name: module.get_function(lowered) for name, lowered in names.items()}

    def _compiled(self, family: str) -> kernel_cache.Loadable:
        """Return the file of a .cu file's machine code for the current device, and its kernels' names there.

        `cupy.RawModule` would compile, too, but puts ``-ftz=true`` behind all options: denormal float32 numbers become
        zero. Code that it loads keeps them.
        """
        from cupy.cuda import Device, compiler, nvrtc

        code, names = source(family), KERNELS[family]
        key = repr((code, OPTIONS, names, Device().compute_capability, nvrtc.getVersion()))
        name = f"mpicomp-{family}-{sha256(key.encode()).hexdigest()[:32]}"
        return kernel_cache.binary(
            name, lambda: compiler.compile_using_nvrtc(code, OPTIONS, None, f"{family}.cu", tuple(names)))


_runtime = Runtime()


def use(runtime: Runtime) -> Runtime:
    """Launch through ``runtime`` from now on; returns the one before."""
    global _runtime
    previous, _runtime = _runtime, runtime
    return previous


def xp() -> Any:
    """CuPy, or MissingExtra."""
    return _runtime.xp


def nccl() -> Any:
    """CuPy's module of that name, or MissingExtra."""
    return _runtime.nccl()


def to_host(x: Array) -> np.ndarray:
    """A copy in host memory, once the device has finished with the array."""
    return _runtime.to_host(x)


def addresses(arrays: Sequence[Array]) -> tuple[int, ...]:
    """Addresses of the arrays in the device's memory."""
    return tuple(map(_runtime.address, arrays))


def place() -> tuple[int, str]:
    """The current device and stream, as a key: `PER_THREAD` is another stream in each thread."""
    stream = _runtime.stream()
    name = f"{stream} of thread {get_ident()}" if stream == PER_THREAD else str(stream)
    return _runtime.current_device(), name


def kept_on_device(make: Callable[Given, Result]) -> Callable[Given, Result]:
    """Keep the last 64 results of ``make``, which are on the current device; lists as arguments become tuples.

    Each device and stream has its own. A table's copy to the device is only queued: another stream might read it too
    early, or, since CuPy's pool is per stream, get its memory too early once it is given up. With a table for each
    stream no stream has to wait.
    """
    made: Callable[..., Result] = lru_cache(maxsize=64)(
        lambda module, device, stream, *args, **kwargs: make(*args, **kwargs))

    @wraps(make)
    def kept(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        given = (tuple(one) if isinstance(one, list) else one for one in args)
        return made(xp(), *place(), *given, **kwargs)

    return kept


def on_device(op: Callable[Given, Result]) -> Callable[Given, Result]:
    """Run ``op`` on the device of its first array argument (a memory may be None)."""

    @wraps(op)
    def wrapped(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        array = args[0] if args and _is_array(args[0]) else next(_arrays(args, kwargs))
        with _runtime.device(array):
            return op(*args, **kwargs)

    return wrapped


def _arrays(args: tuple[object, ...], kwargs: dict[str, object]) -> Iterator[Array]:
    for arg in (*args, *kwargs.values()):
        yield from filter(_is_array, arg if isinstance(arg, list | tuple) else (arg,))


def _is_array(thing: object) -> bool:
    return hasattr(thing, "dtype") and not isinstance(thing, type)  # as a class of NumPy's


def launch(family: str, name: str, blocks: int, *args: object) -> None:
    """Queue a kernel; a grid of no blocks is not allowed in CUDA and would do nothing."""
    if blocks:
        _runtime.kernel(family, name)((blocks,), (THREADS,), args)


def blocks_for(work: SupportsInt, of_block: int = THREADS) -> int:
    """Blocks for ``work`` threads, at most MAX_BLOCKS; or for that many of what a block does ``of_block`` of, at most
    MAX_PIECES.
    """
    return min(MAX_BLOCKS if of_block == THREADS else MAX_PIECES, -(-int(work) // of_block))


def packs(x: Array) -> int:
    """Threads for a pass over ``x`` that reads 16 bytes at a time."""
    return -(-x.size * x.dtype.itemsize // PACK_BYTES)
