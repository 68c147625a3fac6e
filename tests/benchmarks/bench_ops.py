"""Time the CPU primitives against a plain copy of the same arrays.

    python tests/benchmarks/bench_ops.py [n] [--quick] [--json]
    python tests/benchmarks/bench_ops.py [n] [--quick] --threads 1,2 [--only TEXT] [--rounds N]

Each op and the copy alternate in one run on one core, and medians are compared, so that a neighbour on the
machine slows both. "must move" counts the bytes that have to be read and written once; the copy counts the same
way, so 100 % is an op that costs no more than moving its data. ``--quick`` is a try-out; ``--json`` prints the table as
JSON, without the comparison of top-k.

``--threads`` compares numbers of threads, each with a copy by as many. A busy machine takes a CPU away from a team for
most of a round, so here minima of rounds are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from mpicomp.ops import _cpu, cpu
from mpicomp.ops.arguments import Key
from mpicomp.ops.block_codes import FORMATS, block_codes_nbytes
from mpicomp.ops.error_bound import bounded_capacity

ROUNDS, ELEMENTS = 9, 25_000_000
QUICK_ROUNDS, QUICK_ELEMENTS = 1, 200_000
DENSITY = 0.001
Case = tuple[str, int, Callable[[], object]]


def cases(n: int) -> list[Case]:
    """(name, bytes that must move, call) of every op on float32 vectors of n elements."""
    rng = np.random.default_rng(1)
    memory, grad = rng.standard_normal((2, n), dtype=np.float32)
    nxt, half = np.empty_like(grad), np.empty(n, np.uint16)
    positions = np.empty(-(-n // 112), np.uint8)
    cpu.chunk_max(memory, grad, [(0, grad.size, 112)], positions)
    indices = np.empty(len(positions), np.int32)
    cpu.chunk_indices(positions, [(0, n, 112)], n, indices)
    values = np.empty(len(indices), np.float32)
    cpu.gather(memory, grad, indices, values)
    k, lam = int(n * DENSITY), 4.65  # |N(0, 2)| exceeds 4.65 with probability 0.001
    small = np.empty(-(-n // 10), np.uint8)
    large = np.empty(-(-n // 1000), np.uint16)
    line = 64 * len(indices)  # a sparse access moves a whole cache line
    table, projected = np.empty(5 << 16, np.float32), np.empty(-(-n // 1024) * 4, np.float32)
    large_table = np.empty(5 << 20, np.float32)
    rows = np.arange(0, n // 1024, 100, dtype=np.int32)
    return [
        ("chunk_max C=112", 8 * n, lambda: cpu.chunk_max(memory, grad, [(0, grad.size, 112)], positions)),
        ("chunk_max C=112, no memory", 4 * n, lambda: cpu.chunk_max(None, grad, [(0, grad.size, 112)], positions)),
        ("chunk_max C=10", 8 * n, lambda: cpu.chunk_max(memory, grad, [(0, grad.size, 10)], small)),
        ("chunk_max C=1000", 8 * n, lambda: cpu.chunk_max(memory, grad, [(0, grad.size, 1000)], large)),
        ("chunk_indices", 5 * len(indices), lambda: cpu.chunk_indices(positions, [(0, n, 112)], n, indices)),
        ("threshold 0.1 %", 8 * n, lambda: cpu.threshold(memory, grad, [(0, grad.size)], [lam])[0]),
        ("threshold 10 %", 8 * n, lambda: cpu.threshold(memory, grad, [(0, grad.size)], [2.326])[0]),
        ("top_k 0.1 %", 8 * n, lambda: cpu.top_k(memory, grad, [(0, grad.size)], [k])),
        ("top_k 10 %", 8 * n, lambda: cpu.top_k(memory, grad, [(0, grad.size)], [n // 10])),
        ("gather 1/112", 2 * line, lambda: cpu.gather(memory, grad, indices, values)),
        ("scatter 1/112", 2 * line, lambda: cpu.scatter(nxt, indices, values)),
        ("masked_update", 12 * n, lambda: cpu.masked_update(nxt, grad, indices, values, 0.1)),
        ("add", 12 * n, lambda: cpu.add(nxt, grad)),
        ("scale", 8 * n, lambda: cpu.scale(nxt, 0.5)),
        ("narrow float16", 6 * n, lambda: cpu.narrow(half, grad, "float16")),
        ("widen float16", 6 * n, lambda: cpu.widen(nxt, half, "float16")),
        ("narrow bfloat16", 6 * n, lambda: cpu.narrow(half, grad, "bfloat16")),
        ("count_nonfinite", 4 * n, lambda: cpu.count_nonfinite(grad)),
        ("squared_norm", 4 * n, lambda: cpu.squared_norm(grad)),
        *selector_cases(memory, grad, nxt, lam),
        *list_cases(n),
        *bounded_cases(n, grad),
        *block_code_cases(n, grad),
        ("count_sketch 5 x 2^16", 8 * n, lambda: cpu.count_sketch(memory, grad, 5, 1 << 16, 1, table)),
        ("count_sketch 5 x 2^20", 8 * n, lambda: cpu.count_sketch(memory, grad, 5, 1 << 20, 1, large_table)),
        ("sketch_estimate 5 x 2^16", 4 * n, lambda: cpu.sketch_estimate(table, 5, 1 << 16, 1, nxt)),
        ("sketch_estimate 5 x 2^20", 4 * n, lambda: cpu.sketch_estimate(large_table, 5, 1 << 20, 1, nxt)),
        ("project_rows 1024, width 4", 8 * n, lambda: cpu.project_rows(memory, grad, [(0, grad.size)], 1024, 4, 1,
                                                                       projected)),
        ("expand_rows 1 %, of 1024", 4 * 1024 * len(rows), lambda: cpu.expand_rows(rows, 1024, [(0, n)], n)),
    ]


def selector_cases(memory, grad, other, lam: float) -> list[Case]:
    """Cases of the selectors' measures and choices, alone and before the exact selection; of dense updates."""
    n = len(grad)
    values = np.empty(n // 100, np.float32)
    lines = 2 * 64 * len(values)  # a sparse access moves a whole cache line
    memory, tenth = memory.copy(), 0.1 * grad  # a gradient is small beside what has gathered in its memory

    def threshold() -> None:
        cpu.threshold(memory, grad, [(0, grad.size)], [lam])[0]

    return [
        ("moments", 8 * n, lambda: cpu.moments(memory, grad, [(0, grad.size)], 0)[0]),
        ("moments above 0.1 %", 8 * n, lambda: cpu.moments(memory, grad, [(0, grad.size)], lam)[0]),
        ("moments, no memory", 4 * n, lambda: cpu.moments(None, grad, [(0, grad.size)], 0)[0]),
        ("moments, then threshold", 16 * n, lambda: (cpu.moments(memory, grad, [(0, grad.size)], 0)[0], threshold())),
        ("sample 1 %", lines, lambda: cpu.sample(memory, grad, [(7, 100, values.size)], values)),
        ("sample 1 %, then threshold", lines + 8 * n,
         lambda: (cpu.sample(memory, grad, [(7, 100, values.size)], values), threshold())),
        ("bin_select 50", 8 * n, lambda: cpu.bin_select(memory, tenth, [(0, tenth.size)], 50)),
        ("bin_select 500", 8 * n, lambda: cpu.bin_select(memory, tenth, [(0, tenth.size)], 500)),
        ("bin_select 5000", 8 * n, lambda: cpu.bin_select(memory, tenth, [(0, tenth.size)], 5000)),
        ("dense_update", 16 * n, lambda: cpu.dense_update(memory, grad, other, 0.1)),
        ("axpby", 12 * n, lambda: cpu.axpby(other, 0.5, other, 1.0, grad)),
    ]


def list_cases(n: int) -> list[Case]:
    """Index lists of a hundredth (gaps) and a fifth (bitmap) of n elements."""
    rng = np.random.default_rng(2)
    few, other, many = (np.flatnonzero(rng.random(n) < share).astype(np.int32) for share in (0.01, 0.01, 0.2))
    width = cpu.largest_gap(few).bit_length()
    gaps, bitmap = np.empty(-(-len(few) * width // 8), np.uint8), np.empty(-(-n // 8), np.uint8)
    cpu.pack_gaps(few, width, gaps)
    cpu.pack_bitmap(many, n, bitmap)
    back, all_back = np.empty_like(few), np.empty_like(many)
    return [
        ("common 1 %, 1 %", few.nbytes + other.nbytes + 16 * n // 10_000, lambda: cpu.common(few, other)),
        ("largest_gap 1 %", few.nbytes, lambda: cpu.largest_gap(few)),
        (f"pack_gaps 1 %, {width} bits", few.nbytes + gaps.nbytes, lambda: cpu.pack_gaps(few, width, gaps)),
        (f"unpack_gaps 1 %, {width} bits", few.nbytes + gaps.nbytes, lambda: cpu.unpack_gaps(gaps, width, n, back)),
        ("pack_bitmap 20 %", many.nbytes + bitmap.nbytes, lambda: cpu.pack_bitmap(many, n, bitmap)),
        ("unpack_bitmap 20 %", many.nbytes + bitmap.nbytes, lambda: cpu.unpack_bitmap(bitmap, n, all_back)),
    ]


def bounded_cases(n: int, noise: np.ndarray) -> list[Case]:
    """Error-bounded codes of a smooth field, of noise and of a constant: values are moved, and streams of them."""
    side = max(1, round(n ** (1 / 3)))
    wave = np.sin(np.arange(side) * (6 * np.pi / side))
    smooth = np.resize((wave[:, None, None] * wave[:, None] + wave / 9).astype(np.float32), n)
    cases: list[Case] = []
    fields = {"smooth": (smooth, 2e-4), "noise": (noise, 0.1), "constant": (np.ones_like(noise), 1e-3)}
    for name, (x, bound) in fields.items():
        codes = np.empty((2, bounded_capacity(n, x.dtype)), np.uint8)
        nbytes, _ = cpu.encode_bounded(x, bound, 2, codes[0])
        stream, total, out = codes[0, :nbytes].copy(), codes[1], np.empty_like(x)
        cases += [
            (f"encode_bounded {name}", x.nbytes + nbytes, partial(cpu.encode_bounded, x, bound, 2, codes[0])),
            (f"sum_bounded {name}", 3 * nbytes, partial(cpu.sum_bounded, [stream, stream], n, x.dtype, bound, total)),
            (f"decode_bounded {name}", x.nbytes + nbytes, partial(cpu.decode_bounded, stream, bound, 1, out)),
        ]
    return cases


def block_code_cases(n: int, x: np.ndarray) -> list[Case]:
    """Block codes of noise: values are moved, and codes."""
    cases: list[Case] = []
    for format in FORMATS:
        codes, out = np.empty(block_codes_nbytes(n, format), np.uint8), np.empty_like(x)
        nbytes, key = x.nbytes + codes.nbytes, Key(1, 2, 3)
        cpu.encode_blocks(x, format, codes)
        cases += [
            (f"encode_blocks {format}", nbytes, partial(cpu.encode_blocks, x, format, codes)),
            (f"encode_blocks {format}, stochastic", nbytes, partial(cpu.encode_blocks, x, format, codes, key)),
            (f"decode_blocks {format}", nbytes, partial(cpu.decode_blocks, codes, format, out)),
        ]
    return cases


def rivals(x: np.ndarray, k: int) -> dict[str, Callable[[], object]]:
    """Other ways to the k largest magnitudes, on one thread; the magnitudes themselves are given to them."""
    size = np.abs(x)
    found = {"numpy.argpartition": lambda: np.argpartition(size, len(size) - k)[len(size) - k :]}
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)
    tensor = torch.from_numpy(size)
    return {**found, "torch.topk": lambda: torch.topk(tensor, k, sorted=False)}


def compare_top_k(n: int, number_of_rounds: int) -> None:
    """Exact top-k beside what others offer, alternating."""
    x = np.random.default_rng(3).standard_normal(n, dtype=np.float32)
    k = int(n * DENSITY)
    calls = {"top_k": lambda: cpu.top_k(None, x, [(0, x.size)], [k]), **rivals(x, k)}
    rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(number_of_rounds)]
    medians = {name: statistics.median(times[name] for times in rounds) for name in calls}
    print(f"\nthe {k} largest magnitudes, no memory; the others are given |x|")
    for name, median in medians.items():
        print(f"{name:28}{median * 1e3:9.2f} ms{median / medians['top_k']:9.1f} x")
    if "torch.topk" not in medians:
        print("torch is not installed here: not compared")


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def options(description: str) -> argparse.Namespace:
    """The arguments of a script that times operations: elements, rounds and ``--json``."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("n", nargs="?", type=int, help=f"float32 elements; {ELEMENTS} unless --quick")
    parser.add_argument("--quick", action="store_true", help="short vectors, one round: a try-out, not a figure")
    parser.add_argument("--json", action="store_true", help="print the table as JSON")
    parser.add_argument("--threads", type=lambda text: [int(number) for number in text.split(",")],
                        metavar="1,2,...", help="compare these numbers of threads instead")  # fmt: skip
    parser.add_argument("--only", default="", metavar="TEXT", help="with --threads: operations whose names have it")
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} unless --quick")
    given = parser.parse_args()
    given.n = given.n or (QUICK_ELEMENTS if given.quick else ELEMENTS)
    given.rounds = given.rounds or (QUICK_ROUNDS if given.quick else ROUNDS)
    return given


def measured(n: int, number_of_rounds: int) -> Iterator[dict[str, Any]]:
    """A row per op: its name, milliseconds, bytes that must move, bytes per second of the op and of the copy."""
    source, target = np.ones(n, np.float32), np.zeros(n, np.float32)

    def copy() -> None:
        np.copyto(target, source)

    for name, nbytes, call in cases(n):
        call(), copy()
        rounds = [(seconds(call), seconds(copy)) for _ in range(number_of_rounds)]
        op_time, copy_time = (statistics.median(times) for times in zip(*rounds, strict=True))
        yield {"operation": name, "ms": op_time * 1e3, "bytes": nbytes, "rate": nbytes / op_time,
               "copy rate": 8 * n / copy_time}  # fmt: skip


def compare_threads(n: int, number_of_rounds: int, teams: list[int], only: str) -> None:
    """A line per operation: its least time for each number of threads, beside that of a copy by as many."""
    source, target = np.ones(n, np.float32), np.zeros(n, np.float32)
    print(f"{'op':28}" + "".join(f"{f'{team} threads':>13}{'% of copy':>11}" for team in teams) + f"{'speed-up':>10}")
    with ThreadPoolExecutor(max(teams)) as pool:

        def copy(team: int) -> None:
            bounds = np.linspace(0, n, team + 1).astype(int).tolist()
            list(pool.map(lambda begin, end: np.copyto(target[begin:end], source[begin:end]), bounds, bounds[1:]))

        for name, nbytes, call in cases(n):
            if only not in name:
                continue
            least = {team: [float("inf"), float("inf")] for team in teams}
            for _ in range(number_of_rounds + 1):
                for team in teams:
                    _cpu.force_threads(team)
                    times = seconds(call), seconds(lambda team=team: copy(team))
                    least[team] = [min(both) for both in zip(least[team], times, strict=True)]
            columns = (f"{own * 1e3:10.2f} ms{100 * (nbytes / own) / (8 * n / copied):9.0f} %"
                       for own, copied in least.values())  # fmt: skip
            print(f"{name:28}" + "".join(columns) + f"{least[teams[0]][0] / least[teams[-1]][0]:9.2f}x", flush=True)
    _cpu.force_threads(0)
    both = " ".join(f"{team}: {8 * n / copied / 1e9:.1f}" for team, (_, copied) in least.items())
    print(f"copy by so many threads, GB/s: {both}")


def main() -> None:
    given = options(__doc__)
    if given.threads:
        print(f"{given.n} float32, {cpu.isa()}, minima of {given.rounds + 1} alternating rounds")
        compare_threads(given.n, given.rounds, given.threads, given.only)
        return
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    settings = f"{given.n} float32, one core, {cpu.isa()}, medians of {given.rounds} alternating rounds; GB = 1e9 bytes"
    if given.json:
        print(json.dumps({"settings": settings, "rows": list(measured(given.n, given.rounds))}))
        return
    print(settings)
    print(f"{'op':28}{'ms':>9}{'must move':>12}{'GB/s':>8}{'copy GB/s':>11}{'% of copy':>11}")
    for row in measured(given.n, given.rounds):
        print(f"{row['operation']:28}{row['ms']:9.2f}{row['bytes'] / 1e6:9.1f} MB{row['rate'] / 1e9:8.1f}"
              f"{row['copy rate'] / 1e9:11.1f}{100 * row['rate'] / row['copy rate']:10.0f} %")
    compare_top_k(given.n, given.rounds)


if __name__ == "__main__":
    main()
