"""Faults that CheckedRuntime must find in kernels, and correct kernels that it must accept (cuda_checks.h)."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from arrays import vector
from cuda_on_cpu import CheckedRuntime

from mpicomp.errors import MpicompError
from mpicomp.ops import gpu, oracle
from mpicomp.ops.arguments import Key
from mpicomp.ops.gpu import cuda_runtime, largest

THREADS, BLOCKS = cuda_runtime.THREADS, 7
PLANTED = Path(__file__).with_name("planted.cu").read_text(encoding="utf-8")
ELEMENTS = THREADS * BLOCKS
KEY = Key(1, 2, 3)
pytestmark = [pytest.mark.skipif(CheckedRuntime.missing() is not None, reason=str(CheckedRuntime.missing())),
              pytest.mark.long("compiles kernels with checks of every access to memory")]


def zeros(dtype, n=ELEMENTS):
    return lambda: np.zeros(n, dtype)


def largest_int():
    return np.full(ELEMENTS, 2**31 - 1, np.int32)


SUM = zeros(np.int64), zeros(np.int64), zeros(np.int32, 1), zeros(np.int64, 1)
# Kernel, what makes its arguments, and what of it is a fault: the kernel with `true` for it has none.
CASES = {
    "reverse<{}>": ((zeros(np.int32),), "race|unwritten"),
    "shift_twice<{}>": ((zeros(np.int32),), "race"),
    "count<{}>": ((zeros(np.int32, 1),), "race"),
    "write_packs<{}>": ((zeros(np.float32, 4 * ELEMENTS),), "race"),
    "last_block<{}, true>": (SUM, "race"),
    "last_block<true, {}>": (SUM, "race"),
    "last_block_of_one<{}, true>": (SUM, "race"),
    "last_block_of_one<true, {}>": (SUM, "race"),
    "chain<{}>": ((zeros(np.int32, 1), zeros(np.int32, BLOCKS)), "deadlock"),
    "read<{}>": ((zeros(np.int32), lambda: np.int64(ELEMENTS), zeros(np.int32)), "outside"),
    "write_shared<{}>": ((zeros(np.int32),), "outside"),
    "exchange<{}>": ((zeros(np.int32),), "left"),
    "add_one<{}>": ((largest_int,), "undefined: add_overflow"),
    "load_packs<{}>": ((zeros(np.float32, 4 * ELEMENTS + 4), zeros(np.float32)), "undefined: type_mismatch"),
}


@pytest.fixture(scope="module")
def planted():
    names = [case.format(right) for case in CASES for right in ("true", "false")]
    cuda_runtime.KERNELS["planted"] = sorted({*names, "fill"})
    yield CheckedRuntime({"planted.cu": PLANTED})
    del cuda_runtime.KERNELS["planted"]


def run(runtime, kernel, arguments):
    runtime.kernel("planted", kernel)((BLOCKS,), (THREADS,), tuple(make() for make in arguments))


@pytest.mark.parametrize("case", CASES)
def test_what_is_right_passes(planted, case):
    for _ in range(5):
        run(planted, case.format("true"), CASES[case][0])


def test_neighbouring_bytes(planted):
    run(planted, "fill", (zeros(np.uint8),))


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_found(planted, case):
    """Most faults in any order of the blocks; that one waits for another which cannot begin, in nearly every."""
    arguments, fault = CASES[case]
    with pytest.raises(AssertionError, match=rf"(?m)MPICOMP_SCHEDULE=(.|\n)*^({fault})"):
        for _ in range(20 if fault == "deadlock" else 1):
            run(planted, case.format("false"), arguments)


@contextmanager
def used(runtime):
    """mpicomp.ops.gpu launches through it."""
    previous = cuda_runtime.use(runtime)
    try:
        yield
    finally:
        cuda_runtime.use(previous)


@pytest.fixture
def checked():
    with used(CheckedRuntime()):
        yield


def kernels_with(file, right, wrong):
    """The kernels as they are, but for one piece of text."""
    text = (cuda_runtime.SOURCES / file).read_text(encoding="utf-8")
    assert text.count(right) == 1, f"{file} has no longer once: {right}"
    return used(CheckedRuntime({file: text.replace(right, wrong)}))


def select(rng):
    grad = vector(rng, 160_001, np.float32)  # ten tiles
    got, expected = gpu.threshold(None, grad, [(0, grad.size)], [2.0])[0], oracle.threshold(None, grad,
                                                                                            [(0, grad.size)], [2.0])[0]
    np.testing.assert_array_equal(got, expected)


def largest_of_spans(rng):
    """Spans that are not sampled, whose tiles nothing is kept of, between those that are."""
    grad, spans = vector(rng, 180_001, np.float32), [(0, 40_000), (40_000, 140_000), (140_000, 180_001)]
    got, expected = (ops.top_k(None, grad, spans, [9, 80_000, 9]) for ops in (gpu, oracle))
    np.testing.assert_array_equal(got, expected)


def norm(rng):
    gpu.squared_norm(vector(rng, 10_001, np.float32))


def moments(rng):
    gpu.moments(None, vector(rng, 40_001, np.float32), [(0, 40_001)], 1.0)


def search(rng):
    gpu.select_normal(None, vector(rng, 40_001, np.float32), [(0, 40_001)], [9])


def nonfinite(rng):
    x = np.zeros(5000, np.float32)
    x[::100] = np.nan
    gpu.count_nonfinite(x)


@pytest.mark.parametrize(
    ("run", "file", "right", "wrong"),
    [
        (select, "collect.cu", "    board.above[t] =", "    ((Word*)board.above)[t] ="),
        (select, "collect.cu", "of_warp[turn][lane] = all", "of_warp[turn][lane ^ 1] = all"),
        (largest_of_spans, "collect.cu", "    __syncthreads();  // the number of the one before has been read\n", ""),
        (largest_of_spans, "top_k.cu", "        sum += above;\n        __syncthreads();\n", "        sum += above;\n"),
        (norm, "common.cuh", "= value;\n    __syncthreads();\n", "= value;\n"),
        (moments, "common.cuh", "    __syncthreads();  // an earlier call's sums have been read\n", ""),
        (search, "common.cuh", "    __threadfence();  // what this thread has", "    // what this thread has"),
        (nonfinite, "measure.cu", "atomicAdd(&found[0], 1ull)", "found[0] += 1"),
    ],
    ids=["publish", "of_warp", "take", "guess", "block_sum", "block_sum-again", "is_last", "count"],
)
def test_races_in_our_kernels_would_be_found(rng, monkeypatch, run, file, right, wrong):
    monkeypatch.setattr(largest, "LONG", 0)
    monkeypatch.setattr(largest, "SAMPLED", cuda_runtime.SAMPLE)
    with kernels_with(file, right, wrong), pytest.raises(AssertionError, match="race: "):
        run(rng)


def test_a_block_waits_for_its_ticket_alone(rng):
    """Taken by number, tiles would wait for blocks that have not begun."""
    follows = "{\n        Tile own = {0, 0, t * tile<T>};\n        long long end = n;\n"  # in `select`
    taken = f"for (long long t = take(board); t < tiles; t = take(board)) {follows}"
    by_number = f"for (long long t = blockIdx.x; t < tiles; t += gridDim.x) {follows}"
    with kernels_with("collect.cu", taken, by_number), pytest.raises(AssertionError, match="deadlock"):
        for _ in range(20):
            select(rng)


def test_candidates_have_no_more_than_their_room(rng, monkeypatch):
    monkeypatch.setattr(largest, "LONG", 0)
    n, k = 2 * cuda_runtime.SAMPLE, 20
    x = np.zeros(n, np.float32)
    x[rng.permutation(n)[: largest.guessed(n, k)[1] + 1]] = 1
    with kernels_with("collect.cu", "place >= area.room", "place > area.room"), \
            pytest.raises(AssertionError, match="outside"):
        gpu.top_k(None, x, [(0, x.size)], [k])


def test_selection_in_any_order_of_its_blocks(rng, checked):
    for _ in range(10):
        select(rng)


def test_bitmaps_of_several_blocks(rng, checked):
    indices, n = np.flatnonzero(rng.random(40_001) < 0.2).astype(np.int32), 40_001
    bitmap, back = np.empty((n + 7) // 8, np.uint8), np.empty_like(indices)
    gpu.pack_bitmap(indices, n, bitmap)
    gpu.unpack_bitmap(bitmap, n, back)
    np.testing.assert_array_equal(back, indices)


def test_many_threads_find_the_same_fault(checked):
    """Threads that find invalid elements at the same time report them without a race."""
    n = 2001
    x, far = np.full(n, np.nan, np.float32), np.full(n, 9, np.uint8)
    bounds = np.arange(n + 1)[::-1].copy()
    for call in (
        lambda: gpu.quantise(x, 1.0, 0, KEY, np.empty(n, np.int8)),
        lambda: gpu.pack_natural(x, 10, 0, KEY, np.empty(n, np.uint8)),
        lambda: gpu.chunk_indices(far, [(0, 2 * n, 2)], 2 * n, np.empty(n, np.int32)),
        lambda: gpu.chunk_indices(far, [(0, 2, 2), (2, 2 * n, 2)], 2 * n, np.empty(n, np.int32)),
        lambda: gpu.group_norms(x, bounds, "max", np.empty(n, np.float32)),
    ):
        with pytest.raises(MpicompError):
            call()


def test_a_finding_comes_back_with_its_schedule(planted, monkeypatch):
    """Setting MPICOMP_SCHEDULE to the reported number reproduces the finding."""
    said = []
    for _ in range(2):
        with pytest.raises(AssertionError) as caught:
            run(planted, "reverse<false>", CASES["reverse<{}>"][0])
        said.append(str(caught.value))
        monkeypatch.setenv("MPICOMP_SCHEDULE", re.search(r"MPICOMP_SCHEDULE=(\d+)", said[0])[1])
    assert said[0] == said[1]
    assert re.search(r" at planted\.cu:\d+ ", said[0])
