"""Compiles what CuPy hands to NVRTC with g++, against the machine of tests/ops/cuda_on_cpu: called by nvrtc.cpp.

    python compile_kernel.py FOLDER

reads ``source.cu``, ``options`` and ``names`` (name expressions, a line each) there; writes ``image`` (driver.cpp says
what it is), ``lowered`` (a name a line) and, where it fails, ``log``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent / "ops")]
from cuda_on_cpu import COMMON, MACHINE, SHARED, made, shared  # noqa: E402
from cuda_on_cpu import HERE as OPS  # noqa: E402

KERNEL = re.compile(r'extern "C"\s+__global__\s+(?:__launch_bounds__\(\w+\)\s+)?void\s+(\w+)\s*\(')
IGNORED = re.compile(r"-arch=(sm|compute)_90|-ftz=true|--fmad=(true|false)|--device-as-default-execution-space")
EXPORTED = 'extern "C" __attribute__((visibility("default"))) int'


def flags(options: list[str]) -> list[str]:
    """g++'s for NVRTC's; an option that neither knows is refused, as NVRTC does."""
    taken = []
    for one in options:
        if one.startswith("-I"):
            taken += [one] if Path(one[2:], "cupy").is_dir() else []  # CUDA's own headers are not for g++
        elif one.startswith(("-D", "--std=")):
            taken.append(one.replace("--std", "-std"))
        elif not IGNORED.fullmatch(one):
            raise ValueError(f"nvrtc: error: invalid value for --gpu-architecture or unrecognized option: {one}")
    return taken


def entries(kernels: dict[str, str]) -> str:
    """By exported name, how the kernel is called in C++: what driver.cpp looks for."""
    return "".join(
        f"{EXPORTED} entry_{name}(unsigned blocks, unsigned threads_, void** values, int given) "
        f"{{ return emulator::launch<&{kernel}>(blocks, threads_, values, given); }}\n"
        f"{EXPORTED} arguments_{name}(int* sizes) {{ return emulator::sizes(&{kernel}, sizes); }}\n"
        for name, kernel in kernels.items()
    )


def compiled(source: str, options: list[str], names: list[str]) -> bytes:
    kernels = {name: name for name in KERNEL.findall(source)} | {f"template_{i}": n for i, n in enumerate(names)}
    machine = {name: (OPS / name).read_text(encoding="utf-8") for name in MACHINE}
    runs = made("machine.o", machine, [*COMMON, "-O2", "-DMOST_THREADS=1024", "-c", "cuda_on_cpu.cpp"])
    texts = {"cuda_on_cpu.h": machine["cuda_on_cpu.h"]}
    texts |= {path.name: path.read_text(encoding="utf-8") for path in (HERE / "include").iterdir()}
    source = source.replace("<cupy/complex.cuh>", '"complex_numbers.h"')
    texts["kernels.cpp"] = f'#include "toolkit.h"\n{SHARED.sub(shared, source)}\n{entries(kernels)}'
    own = [*COMMON, "-O1", "-fwrapv", "-I.", "-D__CUDACC_VER_MAJOR__=13", "-D__CUDA_ARCH__=900"]
    built = made("kernels.o", texts, [*own, *flags(options), "-c", "kernels.cpp"])
    return made("kernels.so", {}, ["-shared", "-Wl,-z,defs", str(built), str(runs)]).read_bytes()


def main(folder: Path) -> int:
    names = (folder / "names").read_text().splitlines()
    try:
        image = compiled((folder / "source.cu").read_text(), (folder / "options").read_text().splitlines(), names)
    except (subprocess.CalledProcessError, ValueError) as error:
        (folder / "log").write_text(str(getattr(error, "stderr", None) or error))
        return 1
    (folder / "image").write_bytes(b"MODULE%016d" % len(image) + image)
    (folder / "lowered").write_text("".join(f"template_{i}\n" for i in range(len(names))))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
