"""Stands in for CuPy's run time: the launchers of mpicomp.ops.gpu drive their .cu files on the CPU.

Each .cu file is compiled as C++ against cuda_on_cpu.h, with one entry for every template instance the launchers
name. "Device" arrays are NumPy arrays. Grid, block and arguments are those the launchers would give a GPU.

`EmulatedRuntime` runs blocks one after the other. `CheckedRuntime` runs several at once, in an order drawn by chance,
and looks at every access to memory (cuda_checks.h says for what).
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import random
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path

import numpy as np

from mpicomp.ops.gpu import cuda_runtime

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".cache" / "cuda_on_cpu"
MACHINE = ("cuda_on_cpu.h", "cuda_knowledge.h", "cuda_checks.h", "cuda_on_cpu.cpp")
COMMON = ("-std=c++17", "-w", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-strict-aliasing",
          "-U_FORTIFY_SOURCE")  # whose check of longjmp knows one stack only
SHARED = re.compile(r"__shared__ (.+?);")
DECLARED = re.compile(r"(?:(.+) )?(\w+)(\[.*\])?")  # type (not in front of a second variable), name, extent


class Unwritten:
    """NumPy, but what ``empty`` gives is huge numbers until it is written: no result may depend on it."""

    def __getattr__(self, name: str):
        return getattr(np, name)

    def empty(self, n: int, dtype) -> np.ndarray:
        return np.full(n * np.dtype(dtype).itemsize, 0x7F, np.uint8).view(dtype)


class EmulatedRuntime(cuda_runtime.Runtime):
    """``xp`` is NumPy; kernels come from shared libraries, one a .cu file, compiled on first use."""

    xp = Unwritten()
    kernel_flags: tuple[str, ...] = ("-O1", "-fwrapv")
    machine_flags: tuple[str, ...] = ("-O2",)

    def device(self, array: np.ndarray) -> nullcontext:
        assert isinstance(array, np.ndarray | np.generic), f"{array!r} is on no device"
        return nullcontext()

    def to_host(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def address(self, array: np.ndarray) -> int:
        return array.ctypes.data

    def current_device(self) -> int:
        return 0

    def stream(self) -> int:
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

    def source(self, name: str) -> str:
        """The text of a .cu or .cuh file."""
        return (cuda_runtime.SOURCES / name).read_text(encoding="utf-8")

    @cache  # noqa: B019 (one instance a test session)
    def _library(self, family: str) -> ctypes.CDLL:
        return ctypes.CDLL(str(self.compiled(family)))

    def compiled(self, family: str) -> Path:
        """The library of a .cu file."""
        machine = {name: (HERE / name).read_text(encoding="utf-8") for name in MACHINE}
        runs = made("machine.o", machine, [*COMMON, *self.machine_flags, "-c", "cuda_on_cpu.cpp"])
        texts = {"cuda_on_cpu.h": machine["cuda_on_cpu.h"]}
        for name in [f"{family}.cu", *(header.name for header in cuda_runtime.SOURCES.glob("*.cuh"))]:
            texts[name] = SHARED.sub(shared, self.source(name))
        entries = (
            f'extern "C" __attribute__((visibility("default"))) int kernel_{i}(unsigned blocks, unsigned threads_, '
            f"void** args, int given) {{ return emulator::launch<&{name}>(blocks, threads_, args, given); }}\n"
            for i, name in enumerate(cuda_runtime.KERNELS[family])
        )
        texts["kernels.cpp"] = f'#include "cuda_on_cpu.h"\n#include "{family}.cu"\n' + "".join(entries)
        flags = *COMMON, *self.kernel_flags, *cuda_runtime.DEFINITIONS
        kernels = made(f"{family}.o", texts, [*flags, "-c", "kernels.cpp"])
        return made(f"{family}.so", {}, ["-shared", "-Wl,-z,defs", str(kernels), str(runs), "-ldl"])


class CheckedRuntime(EmulatedRuntime):
    """Raises AssertionError if a kernel has a fault that cuda_checks.h looks for.

    ``instead`` maps file names to the text to compile in place of the file's own: kernels with a known fault. If it is
    empty, the names of kernels launched with several blocks are appended to the file that MPICOMP_CHECK_CUDA names.
    """

    kernel_flags = ("-O1", "-g1", "-fsanitize=thread,undefined", "-fno-sanitize=vptr",
                    "--param=tsan-distinguish-volatile=1", "--param=tsan-instrument-func-entry-exit=0")  # fmt: skip
    machine_flags = ("-O2", "-DCHECKED")

    def __init__(self, instead: dict[str, str] | None = None) -> None:
        self._instead = instead or {}
        self._asked: dict[int, int] = {}  # bytes of the arrays whose addresses were asked for: tables hold them

    @staticmethod
    def missing() -> str | None:
        """Name the requirement that this machine does not meet, or return None."""
        version = subprocess.run(["g++", "-dumpversion"], capture_output=True, text=True).stdout
        return None if int(version.split(".")[0] or 0) >= 11 else f"needs g++ 11 or newer, has {version.strip()}"

    def source(self, name: str) -> str:
        return self._instead.get(name) or super().source(name)

    def address(self, array: np.ndarray) -> int:
        self._asked[array.ctypes.data] = array.nbytes
        return super().address(array)

    def kernel(self, family: str, name: str):
        plain, library = super().kernel(family, name), self._library(family)
        library.findings.restype = ctypes.c_char_p
        log = None if self._instead else os.environ.get("MPICOMP_CHECK_CUDA")

        def launch(grid: tuple[int], block: tuple[int], args: tuple) -> None:
            own = [(arg.ctypes.data, arg.nbytes) for arg in args if isinstance(arg, np.ndarray)]
            arrays = [*own, *self._asked.items()]
            columns = ((ctypes.c_size_t * len(arrays))(*column) for column in zip(*arrays, strict=True))
            library.allow(*columns, len(arrays))
            seed = int(os.environ.get("MPICOMP_SCHEDULE", random.randrange(2**63)))
            library.schedule(2 + seed % 5, ctypes.c_ulonglong(seed))
            plain(grid, block, args)
            if log and grid[0] > 1:
                with open(log, "a", encoding="utf-8") as file:
                    file.write(f"{name}\n")
            if found := library.findings().decode():
                lines = re.sub("@(.+?)@", lambda code: _line(library._name, code[1]), found)
                raise AssertionError(f"{name} in {grid[0]} blocks, MPICOMP_SCHEDULE={seed}:\n{lines}")

        return launch


def made(name: str, texts: dict[str, str], options: list[str]) -> Path:
    """Path of the output of g++ for these files: compiled once, kept for other processes and later runs."""
    key = hashlib.sha256(repr((texts, options)).encode()).hexdigest()[:16]
    result = CACHE / f"{key}-{name}"
    if not result.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            for file, text in texts.items():
                Path(folder, file).write_text(text, encoding="utf-8")
            subprocess.run(["g++", *options, "-o", "made"], cwd=folder, check=True, timeout=900)
            Path(folder, "made").replace(result)
    return result


def shared(declaration: re.Match) -> str:
    """``__shared__ T a[n], b;`` as references to memory of the block (cuda_on_cpu.h)."""
    references, kind = [], ""
    for one in declaration[1].split(", "):
        first, name, extent = DECLARED.fullmatch(one).groups()
        kind = first or kind
        references.append(f"auto& {name} = emulator::shared_memory<{kind}{extent or ''}>([] {{}});")
    return " ".join(references)


def _line(library: str, code: str) -> str:
    """File and line of a place in a library's code, in a .cu file or one of its headers."""
    said = subprocess.run(["addr2line", "-i", "-e", library, code], capture_output=True, text=True, check=True).stdout
    lines = [Path(line.split(" ")[0]).name for line in said.splitlines()]
    return next((line for line in lines if not line.startswith("cuda_on_cpu")), lines[0])


def _argument(arg) -> np.ndarray:
    """Bytes of one kernel argument: an array's address, or a scalar's value."""
    if isinstance(arg, np.ndarray):
        return np.array([arg.ctypes.data], np.uintp)
    assert isinstance(arg, np.generic), f"a kernel's argument must have a C type, got {type(arg)}"
    return np.array([arg])
