"""Stands in for CuPy's run time: the launchers of mpicomp.ops.gpu drive their .cu files on the CPU.

Each .cu file is compiled as C++ against cuda_on_cpu.h, with one entry for every template instance the launchers
name. "Device" arrays are NumPy arrays. Grid, block and arguments are those the launchers would give a GPU.
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import numpy as np

from mpicomp.ops import cuda_runtime

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "cuda_on_cpu"
OPTIONS = ("-std=c++17", "-O1", "-ffp-contract=off", "-fwrapv", "-fno-strict-aliasing", "-shared", "-fPIC", "-w",
           "-U_FORTIFY_SOURCE")  # whose check of longjmp knows one stack only


class Unwritten:
    """NumPy, but what ``empty`` gives is huge numbers until it is written: no result may depend on it."""

    def __getattr__(self, name: str):
        return getattr(np, name)

    def empty(self, n: int, dtype) -> np.ndarray:
        return np.full(n * np.dtype(dtype).itemsize, 0x7F, np.uint8).view(dtype)


class EmulatedRuntime(cuda_runtime.Runtime):
    """``xp`` is NumPy; kernels come from shared libraries, one a .cu file, compiled on first use."""

    xp = Unwritten()

    def device(self, array: np.ndarray) -> nullcontext:
        return nullcontext()

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def address(self, array: np.ndarray) -> int:
        return array.ctypes.data

    def current_device(self) -> int:
        return 0

    def kernel(self, family: str, name: str):
        entry = getattr(self._library(family), f"kernel_{cuda_runtime.KERNELS[family].index(name)}")

        def launch(grid: tuple[int], block: tuple[int], args: tuple) -> None:
            values = [_argument(arg) for arg in args]
            pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
            expected = entry(grid[0], block[0], pointers, len(values))
            assert expected == len(values), f"{name} takes {expected} arguments, got {len(values)}"

        return launch

    @contextmanager
    def window(self, family: str, first: int, most: int) -> Iterator[None]:
        """Within the block, run only blocks ``first`` to ``first + most`` of this family's grids."""
        self._library(family).window(ctypes.c_uint(first), ctypes.c_uint(most))
        yield
        self._library(family).window(ctypes.c_uint(0), ctypes.c_uint(2**32 - 1))

    @cache  # noqa: B019 (one instance a test session)
    def _library(self, family: str) -> ctypes.CDLL:
        entries = (
            f'extern "C" int kernel_{i}(unsigned blocks, unsigned threads_, void** args, int given) '
            f"{{ return emulator::launch<&{name}>(blocks, threads_, args, given); }}\n"
            for i, name in enumerate(cuda_runtime.KERNELS[family])
        )
        text = '#include "cuda_on_cpu.h"\n' + cuda_runtime.source(family) + "".join(entries)
        return ctypes.CDLL(str(_compiled(family, text)))


def _compiled(family: str, text: str) -> Path:
    """The library of a translation unit: compiled when first wanted, and kept for other processes and later runs."""
    origin = "".join([text, (HERE / "cuda_on_cpu.h").read_text(), *OPTIONS])
    library = CACHE / f"{family}-{hashlib.sha256(origin.encode()).hexdigest()[:16]}.so"
    if not library.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            code, made = Path(folder, f"{family}.cpp"), Path(folder, "made.so")
            code.write_text(text)
            subprocess.run(["g++", *OPTIONS, f"-I{HERE}", "-o", made, code], check=True, timeout=100)
            made.replace(library)
    return library


def _argument(arg) -> np.ndarray:
    """The bytes a launch reads: an array's address, or a scalar's value."""
    if isinstance(arg, np.ndarray):
        return np.array([arg.ctypes.data], np.uintp)
    assert isinstance(arg, np.generic), f"a kernel's argument must have a C type, got {type(arg)}"
    return np.array([arg])
