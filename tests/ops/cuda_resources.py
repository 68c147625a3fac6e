"""Registers, shared memory and spills of each kernel, as the CUDA compiler reports them. Needs NVRTC, no device.

``python tests/ops/cuda_resources.py`` writes the table of all kernels to docs/results/cuda-resources.md.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, NamedTuple

from mpicomp.ops.gpu import cuda_runtime

ARCHITECTURES = ("sm_80", "sm_90", "sm_100")  # Ampere, Hopper, Blackwell
TABLE = Path(__file__).parents[2] / "docs" / "results" / "cuda-resources.md"

ENTRY = re.compile(
    r"Function properties for (?P<name>\S+)\s+(?:ptxas\s*\.?\s*)?"
    r"(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads\s+"
    r"ptxas info\s*: Used (?P<registers>\d+) registers(?P<rest>[^\n]*)"
)
SHARED = re.compile(r"(\d+) bytes smem")


class Resources(NamedTuple):
    """Resources of one kernel: registers, stack bytes and spilled bytes per thread; shared-memory bytes per block."""

    registers: int
    shared: int
    stack: int
    spilled: int


def checked(result: tuple) -> Any:
    from cuda.bindings import nvrtc

    status, *values = result
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, status
    return values[0] if len(values) == 1 else values


def compile_family(family: str, architecture: str) -> dict[str, Resources]:
    """Compile a .cu file with every instance that is launched; what each takes, by the launchers' names.

    Raises
    ------
    AssertionError
        It does not compile: the compiler's log.
    """
    from cuda.bindings import nvrtc

    names = cuda_runtime.KERNELS[family]
    code = cuda_runtime.source(family).encode()
    program = checked(nvrtc.nvrtcCreateProgram(code, f"{family}.cu".encode(), 0, [], []))
    for name in names:
        checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    wanted = (*cuda_runtime.OPTIONS, f"--gpu-architecture={architecture}", "--ptxas-options=-v")
    status, *_ = nvrtc.nvrtcCompileProgram(program, len(wanted), [option.encode() for option in wanted])
    log = _log_of(program)
    assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, log
    lowered = {name: checked(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode() for name in names}
    checked(nvrtc.nvrtcDestroyProgram(program))
    found = report(log)
    return {name: found[lowered[name]] for name in names}


def assembly(family: str, names: list[str]) -> dict[str, str]:
    """Some kernels of a .cu file in the virtual assembly that devices of compute capability 8.0 and later translate."""
    from cuda.bindings import nvrtc

    program = checked(nvrtc.nvrtcCreateProgram(cuda_runtime.source(family).encode(), b"", 0, [], []))
    for name in names:
        checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    wanted = [option.encode() for option in (*cuda_runtime.OPTIONS, "--gpu-architecture=compute_80")]
    checked(nvrtc.nvrtcCompileProgram(program, len(wanted), wanted))
    text = b" " * checked(nvrtc.nvrtcGetPTXSize(program))
    nvrtc.nvrtcGetPTX(program, text)
    found = {}
    for name in names:
        lowered = checked(nvrtc.nvrtcGetLoweredName(program, name.encode()))
        found[name] = text.split(b".entry " + lowered + b"(")[1].split(b".entry")[0].decode()
    checked(nvrtc.nvrtcDestroyProgram(program))
    return found


def _log_of(program: Any) -> str:
    from cuda.bindings import nvrtc

    text = b" " * checked(nvrtc.nvrtcGetProgramLogSize(program))
    nvrtc.nvrtcGetProgramLog(program, text)
    return text.decode().strip("\0 ")


def report(log: str) -> dict[str, Resources]:
    """The resource report in a compiler's log, by the kernels' mangled names."""
    found = {}
    for entry in ENTRY.finditer(log):
        shared = SHARED.search(entry["rest"])
        spilled = int(entry["stores"]) + int(entry["loads"])
        found[entry["name"]] = Resources(
            int(entry["registers"]), int(shared[1]) if shared else 0, int(entry["stack"]), spilled
        )
    return found


def table() -> str:
    """All kernels, one row each, beside what each architecture gives them."""
    from cuda.bindings import nvrtc

    version = ".".join(map(str, checked(nvrtc.nvrtcVersion())))
    options = " ".join(option for option in cuda_runtime.OPTIONS if option not in cuda_runtime.DEFINITIONS)
    lines = [
        "# Registers and spills of the CUDA kernels",
        "",
        f"Written by `python tests/ops/cuda_resources.py` with NVRTC {version}, options `{options}`.",
        "A cell is registers of a thread / bytes of static shared memory of a block / bytes spilled (stores, loads).",
        f"Blocks have {cuda_runtime.THREADS} threads; up to 32 registers fill a multiprocessor of 2048 threads.",
        "",
        f"| kernel | {' | '.join(ARCHITECTURES)} |",
        f"|---|{'---|' * len(ARCHITECTURES)}",
    ]
    for family, names in cuda_runtime.KERNELS.items():
        by_architecture = [compile_family(family, architecture) for architecture in ARCHITECTURES]
        for name in names:
            cells = (f"{one[name].registers} / {one[name].shared} / {one[name].spilled}" for one in by_architecture)
            lines.append(f"| `{family}: {name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
    sys.stdout.write(f"{TABLE}: {sum(map(len, cuda_runtime.KERNELS.values()))} kernels\n")
