"""Count instructions and bytes in flight in the machine code of the passes over vectors.

``python tests/ops/cuda_counts.py`` prints a table of docs/development/gpu.md. Needs NVRTC and nvdisasm
(of the CUDA toolkit, or ``pip install nvidia-cuda-nvdisasm``), no device. A count is no measurement: it leaves out
caches, conflicts and waiting.
"""

from __future__ import annotations

import heapq
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cuda_resources import Resources, checked, compile_family

from mpicomp.ops.gpu import cuda_runtime

ARCHITECTURE = "sm_90"
MULTIPROCESSORS, CLOCK, ISSUED = 132, 1.7e9, 4  # of an H100: instructions of a warp a clock, on a multiprocessor
REGISTERS, THREADS, SHARED = 65536, 2048, 227 << 10  # of a multiprocessor
LOADED = re.compile(r"\bLDG?\.E(?:\.(?:128|64|U16|U8|S16|S8|CONSTANT|STRONG|SYS))* (R\d+)")


class Hot(NamedTuple):
    """A pass: what a turn of its loop must execute (a pattern: how often), and the bytes that a thread then has moved.

    Of the ways round the loop the one with the fewest instructions is counted that executes this: aligned arrays, whole
    runs, long groups, and no special values.
    """

    name: str
    family: str
    kernel: str
    element: float  # bytes moved an element
    turn: float  # bytes moved by a thread in a turn
    executes: dict[str, int]
    loops: bool = True


WIDE, RANDOM = r"LDG?\.E\.128", "IMAD.WIDE.U32"  # four random numbers take 18 wide products of what is not constant
HOT = (
    Hot("compensate + chunk-max, of 112", "chunk_max", "chunk_max<float, unsigned char>", 8, 28, {WIDE: 2, "REDUX": 2}),
    Hot("the same in many tensors", "chunk_max", "chunk_max_spans<float, unsigned char>", 8, 28, {WIDE: 2, "REDUX": 2}),
    Hot("masked update", "update", "masked_update<float, int>", 12, 192, {WIDE: 8, r"STG\.E\.128": 4}),
    Hot("dense update", "update", "dense_update<float>", 16, 64, {WIDE: 3}),
    Hot("add", "reduce", "combine<Add, float>", 12, 48, {WIDE: 2}),
    Hot("threshold compaction", "collect", "select<float, int, false>", 8, 128, {WIDE: 8, r"SHFL\.UP": 10}),
    Hot("candidates of top-k", "collect", "keep<float, int, false>", 8, 128, {WIDE: 8, r"SHFL\.UP": 10}),
    Hot("count of a digit", "top_k", "count_digits<float>", 8, 32, {WIDE: 2, "ATOMS": 4}),
    Hot("half to float", "half", "widen<Float16>", 6, 48, {r"LDG?\.E\.64": 2, r"STG\.E\.128": 2}),
    Hot("half added to float", "half", "add_widened<Float16>", 10, 80, {r"LDG?\.E\.64": 2, r"STG\.E\.128": 2}),
    Hot("float to half", "half", "narrow<Float16>", 6, 48, {WIDE: 2, r"STG\.E\.64": 2}),
    Hot("count non-finite", "measure", "count_nonfinite<float>", 4, 16, {WIDE: 1}),
    Hot("pack tensors", "many", "move_arrays<unsigned int, true>", 8, 32, {r"STG\.E\.128": 1, WIDE: 1}),
    Hot("unpack tensors", "many", "move_arrays<unsigned int, false>", 8, 32, {WIDE: 1, r"ST\.E\.128": 1}),
    Hot("unpack sparse means", "many", "move_sparse<unsigned int, int>", 4, 16, {r"ST\.E\.128": 1}),
    Hot("one-bit encode", "quantise", "pack_signs<float>", 4.125, 33, {WIDE: 2}),
    Hot("one-bit decode", "quantise", "unpack_signs<float>", 4.125, 33, {r"LDG\.E\.U8": 1, r"STG\.E": 1}),
    Hot("QSGD encode, 4 bits", "quantise", "pack_levels<float>", 4.5, 36,
        {WIDE: 2, RANDOM: 36, "F2I": 8, r"STG\.E": 1}),
    Hot("QSGD decode, 4 bits", "quantise", "unpack_levels<float>", 4.5, 18, {r"LDG\.E\.U16": 1, r"STG\.E": 1}),
    Hot("natural encode", "quantise", "pack_natural<float>", 5, 20, {WIDE: 1, RANDOM: 18}),
    Hot("natural decode", "quantise", "unpack_natural<float>", 5, 20, {r"LDG\.E": 1, r"STG\.E\.128": 1}),
    Hot("sums of groups of 512", "norms", "sum_groups<float, Norm>", 4, 16, {r"LDG\.E ": 4, "DADD": 4}),
    Hot("moments", "moments", "moments<float>", 8, 32, {WIDE: 2, "DADD": 8}),
    Hot("moments, then a threshold", "search", "first_threshold<float, true>", 8, 32, {WIDE: 2, "DADD": 8}),
    Hot("counts for ten thresholds", "search", "correct_thresholds<float>", 8, 32, {WIDE: 2}),
    Hot("first stage of exponential fits", "search", "fit_stage<float, true>", 9, 36, {WIDE: 2, "VOTE": 4}),
    Hot("later stages", "search", "fit_stage<float, false>", 4, 4, {r"LDG\.E ": 1, "DADD": 1}),
)  # fmt: skip


class Code(NamedTuple):
    """A kernel's instructions, and to which of them labels point."""

    lines: list[str]
    labels: dict[str, int]

    def after(self, at: int) -> Iterator[int]:
        """Which instructions may come next."""
        line = self.lines[at]
        jump, guarded = re.search(r"\bBRA\b.*`\((\.L_x_\d+)\)", line), re.match(r"@|BRA\.DIV|BRA(?:\.\w+)* !?U?P", line)
        if jump:
            yield self.labels[jump[1]]
        if guarded or not (jump or re.match(r"EXIT|RET", line)):
            yield at + 1


def nvdisasm() -> str:
    beside = shutil.which("nvdisasm")
    if beside:
        return beside
    try:
        files = importlib.metadata.files("nvidia-cuda-nvdisasm") or []
        return str(next(file.locate() for file in files if file.name == "nvdisasm"))
    except (importlib.metadata.PackageNotFoundError, StopIteration):
        raise SystemExit("nvdisasm is missing: pip install nvidia-cuda-nvdisasm") from None


def disassembled(family: str, names: list[str]) -> dict[str, Code]:
    """Some kernels of a .cu file as the device executes them."""
    from cuda.bindings import nvrtc

    program = checked(nvrtc.nvrtcCreateProgram(cuda_runtime.source(family).encode(), b"", 0, [], []))
    for name in names:
        checked(nvrtc.nvrtcAddNameExpression(program, name.encode()))
    options = [option.encode() for option in (*cuda_runtime.OPTIONS, f"--gpu-architecture={ARCHITECTURE}")]
    checked(nvrtc.nvrtcCompileProgram(program, len(options), options))
    binary = b" " * checked(nvrtc.nvrtcGetCUBINSize(program))
    nvrtc.nvrtcGetCUBIN(program, binary)
    lowered = {name: checked(nvrtc.nvrtcGetLoweredName(program, name.encode())).decode() for name in names}
    checked(nvrtc.nvrtcDestroyProgram(program))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(binary)
        text = subprocess.run([nvdisasm(), "-c", file.name], capture_output=True, text=True, check=True).stdout
    return {name: code_of(re.split(r"\n\s*\.section", text.split(f".text.{low}:")[1])[0])
            for name, low in lowered.items()}


def code_of(text: str) -> Code:
    code = Code([], {})
    for line in text.splitlines():
        label, instruction = re.match(r"\s*([.$][\w$]+):", line), re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;", line)
        if label:
            code.labels[label[1]] = len(code.lines)
        elif instruction:
            code.lines.append(instruction[1])
    return code


def fewest(code: Code, begin: int, end: int | None, executes: dict[str, int]) -> list[int] | None:
    """The shortest way from ``begin`` to it again, or to where the kernel ends (None), that executes what it must."""
    patterns, least = list(executes), tuple(executes.values())
    heap: list[tuple[int, int, tuple[int, ...], Any]] = [(0, begin, (0,) * len(least), None)]
    seen: dict[tuple[int, tuple[int, ...]], Any] = {}
    while heap:
        length, at, had, before = heapq.heappop(heap)
        if (at, had) in seen:
            continue
        seen[at, had] = before
        has = tuple(min(most, n + bool(re.search(what, code.lines[at])))
                    for what, most, n in zip(patterns, least, had, strict=True))
        follow = list(code.after(at))
        if has == least and (end in follow if end is not None else code.lines[at].startswith("EXIT")):
            way, state = [], (at, had)
            while state:
                way.append(state[0])
                state = seen[state]
            return way[::-1]
        for one in follow:
            if one < len(code.lines) and (one, has) not in seen:
                heapq.heappush(heap, (length + 1, one, has, (at, had)))
    return None


def turn_of(code: Code, hot: Hot) -> list[str]:
    """The instructions of a thread's turn."""
    heads = {code.labels[m[1]] for i, line in enumerate(code.lines) if (m := re.search(r"BRA.*`\((\.L_x_\d+)\)", line))
             and code.labels[m[1]] <= i} if hot.loops else {0}  # fmt: skip
    ways = [fewest(code, head, head if hot.loops else None, hot.executes) for head in sorted(heads)]
    return [code.lines[at] for at in min((way for way in ways if way), key=len)]


def in_flight(way: list[str]) -> int:
    """Bytes that a thread has asked for at most before it needs the first of them."""
    widths, most = {"128": 16, "64": 8, "U16": 2, "U8": 1, "S16": 2, "S8": 1}, 0
    pending: dict[int, int] = {}  # by register
    for line in way:
        load = LOADED.search(line)
        read = line[load.end() :] if load else line
        if any(int(number) in pending for number in re.findall(r"\bR(\d+)", read)):
            pending.clear()
        if load:
            width = next((widths[word] for word in load[0].split(" ")[0].split(".") if word in widths), 4)
            first = int(load[1][1:])
            pending.update(dict.fromkeys(range(first, first + max(1, width // 4)), min(4, width)))
            most = max(most, sum(pending.values()))
    return most


def blocks_of(taken: Resources) -> int:
    """Blocks that a multiprocessor has at a time: registers are given out eight at a time, shared memory 1 KiB more."""
    registers = -(-taken.registers // 8) * 8 * cuda_runtime.THREADS
    return min(THREADS // cuda_runtime.THREADS, REGISTERS // registers, SHARED // (taken.shared + 1024))


def row(hot: Hot, code: Code, taken: Resources) -> str:
    way, blocks = turn_of(code, hot), blocks_of(taken)
    each = 16 * len(way) / hot.turn
    rate = MULTIPROCESSORS * CLOCK * ISSUED * cuda_runtime.WARP * 16 / each
    asked = blocks * cuda_runtime.THREADS * in_flight(way)
    return (f"| {hot.name} | {hot.element:g} | {len(way)} | {each:.0f} | {blocks * cuda_runtime.THREADS} "
            f"| {asked / 1e3:.0f} | {rate / 1e12:.1f} |")


def main(words: list[str]) -> int:
    lines = ["| pass over float32 | bytes per element | instructions per turn | for 16 bytes | threads | KB requested "
             "| TB/s if only issued |", "|---|---|---|---|---|---|---|"]  # fmt: skip
    for hot in HOT:
        if not words or any(word in hot.name for word in words):
            taken = compile_family(hot.family, ARCHITECTURE)[hot.kernel]
            lines.append(row(hot, disassembled(hot.family, [hot.kernel])[hot.kernel], taken))
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
