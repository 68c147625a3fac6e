"""Operations on a team of threads: the bits of one thread, whatever their number."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from mpicomp.errors import InvalidArgument
from mpicomp.ops import _cpu, cpu, oracle
from mpicomp.ops.error_bound import bounded_capacity

PART = 1 << 16  # part_elements of pool.h
TEAMS = (1, 2, 3, 7)
LENGTHS = (PART - 1, 4 * PART - 1, 4 * PART, 4 * PART + 1, 9 * PART + 12_345)


@pytest.fixture
def team():
    """Sets the number of threads for one test."""
    yield _cpu.force_threads
    _cpu.force_threads(0)


def same_for_every_team(team, call) -> None:
    """``call()`` returns arrays: they must be alike, bit by bit, for every number of threads."""
    results = []
    for threads in TEAMS:
        team(threads)
        results.append([np.asarray(one).tobytes() for one in call()])
    assert all(result == results[0] for result in results), [result == results[0] for result in results]


@pytest.fixture(params=[np.float32, np.float64])
def vectors(request, rng):
    """(memory, grad) with ties, zeros, and what is not a number."""
    n = int(rng.choice(LENGTHS))
    memory, grad = (rng.integers(-99, 99, n) / 8 + (rng.random(n) < 0.5) * rng.standard_normal(n) for _ in range(2))
    grad[rng.integers(0, n, 9)] = np.nan
    grad[rng.integers(0, n, 9)] = np.inf
    return memory.astype(request.param), grad.astype(request.param)


def some_indices(rng, n: int, share: float, dtype=np.int32) -> np.ndarray:
    return np.flatnonzero(rng.random(n) < share).astype(dtype)


def changed(name: str, x: np.ndarray, *arguments) -> np.ndarray:
    """A copy of ``x`` after an operation on it."""
    out = x.copy()
    getattr(cpu, name)(out, *arguments)
    return out


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", ["add", "multiply", "minimum", "maximum"])
def test_reductions(team, rng, name, n):
    x, y = rng.standard_normal((2, n)).astype(np.float32)
    same_for_every_team(team, lambda: [changed(name, x, y)])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("long", [False, True], ids=["in caches", "past caches"])
def test_lists_of_arrays(team, rng, dtype, long):
    lengths = [0, 1, 0, 17, PART // 2, PART - 1, 3, 2 * PART + 1, 0, 18 * PART, *rng.integers(0, 3000, 40)]
    lengths = rng.permutation(lengths + long * [40 * PART, 1, 0]).tolist()
    n = sum(lengths)
    flat = rng.standard_normal(n).astype(dtype)
    indices = some_indices(rng, n, 0.01)
    sparse = np.zeros(n, dtype)
    sparse[indices] = flat[indices]
    starts = np.cumsum([0, *lengths[:-1]])

    def arrays(values: np.ndarray) -> list[np.ndarray]:
        """The parts of ``values``, none beginning at a cache line's first element but by chance."""
        room = np.empty(n + len(lengths), dtype)
        found = []
        for start, length in zip(starts, lengths, strict=True):
            one = room[start + len(found) : start + len(found) + length]
            one[:] = values[start : start + length]
            found.append(one)
        return found

    given = arrays(flat)
    for threads in TEAMS:
        team(threads)
        packed, back, expanded = np.empty(n, dtype), arrays(np.ones(n)), arrays(np.ones(n))
        cpu.pack(given, packed)
        cpu.unpack(flat, back)
        cpu.unpack_sparse(indices, flat[indices], expanded)
        assert packed.tobytes() == flat.tobytes()
        assert np.concatenate(back).tobytes() == flat.tobytes()
        assert np.concatenate(expanded).tobytes() == sparse.tobytes()


def test_arrays_with_common_memory_keep_the_last_values(team, rng):
    flat, room = rng.standard_normal(12 * PART).astype(np.float32), np.empty(8 * PART, np.float32)

    def call():
        cpu.unpack(flat, [room[: 6 * PART], room[2 * PART :]])
        yield room

    same_for_every_team(team, call)
    assert room[2 * PART :].tobytes() == flat[6 * PART :].tobytes()


@pytest.mark.parametrize("has_memory", [True, False])
def test_selections(team, rng, vectors, has_memory):
    memory, grad = vectors if has_memory else (None, vectors[1])
    n = grad.size
    spans, k = [(0, n)], int(rng.integers(1, n))

    def call():
        for chunk in (7, 112, 1000, 65_536):
            positions = np.empty(-(-n // chunk), np.uint8 if chunk <= 256 else np.uint16)
            cpu.chunk_max(memory, grad, [(0, n, chunk)], positions)
            indices = np.empty(positions.size, np.int32)
            cpu.chunk_indices(positions, [(0, n, chunk)], n, indices)
            yield indices
        for lam in (0.0, 3.0, 24.0, np.inf):
            yield cpu.threshold(memory, grad, spans, [lam])[0]
        for count in (1, k, n // 1000, n):
            yield cpu.top_k(memory, grad, spans, [count])
        for length in (50, 5000, n // 3, n):
            yield cpu.bin_select(memory, grad, spans, length)
        for select in (cpu.select_normal, cpu.select_exponential):
            found, parts = select(memory, np.nan_to_num(grad, posinf=0), spans, [n // 100])[:2]
            yield found
            yield parts

    same_for_every_team(team, lambda: list(call()))


def test_top_k_of_many_arrays(team, rng):
    """Long ones have all threads, one after the other; short ones are dealt out."""
    lengths = rng.permutation([0, 1, 17 * PART, 16 * PART + 1, 3 * PART, *rng.integers(1, 5000, 90)])
    ends = np.cumsum(lengths)
    spans = [(int(end - length), int(end)) for length, end in zip(lengths, ends, strict=True)]
    memory, grad = rng.integers(-99, 99, (2, int(ends[-1]))).astype(np.float32)
    counts = [int(rng.integers(0, stop - start + 1)) for start, stop in spans]
    expected = oracle.top_k(memory, grad, spans, counts)
    for threads in TEAMS:
        team(threads)
        np.testing.assert_array_equal(cpu.top_k(memory, grad, spans, counts), expected)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_top_k_of_equals(team, rng, value):
    """Which takes the exact search: the sample tells nothing."""
    x = np.full(LENGTHS[-1], value, np.float32)
    x[rng.integers(0, x.size, 5)] = 2
    for k in (1, 7, 2 * PART + 1, x.size - 3):
        expected = np.sort(np.argsort(-x, kind="stable")[:k])
        for threads in TEAMS:
            team(threads)
            np.testing.assert_array_equal(cpu.top_k(None, x, [(0, x.size)], [k]), expected)


def test_measures(team, vectors):
    memory, grad = vectors
    finite = np.nan_to_num(grad, posinf=1)
    n = grad.size

    def call():
        sample = np.empty((n - 5) // 3, grad.dtype)
        cpu.sample(memory, grad, [(5, 3, sample.size)], sample)
        yield sample
        yield cpu.count_nonfinite(grad)
        yield cpu.count_nonfinite(finite)
        yield cpu.count_beyond(memory, grad, 3.0)
        yield cpu.squared_norm(finite)
        yield cpu.moments(memory, finite, [(0, n), (n // 3, n)], 0.5)

    same_for_every_team(team, lambda: list(call()))
    assert cpu.squared_norm(finite) == pytest.approx(np.sum(np.square(finite, dtype=np.float64)), rel=1e-12)


def test_error_bounded_streams(team, rng, vectors):
    """Smooth values, noise and blocks that escape."""
    noisy, special = vectors
    n, bound = noisy.size, 1e-2
    smooth = np.sin(np.arange(n) / 99).astype(noisy.dtype)

    def streams(codes):
        for x in (smooth, noisy, special):
            nbytes, escaped = cpu.encode_bounded(x, bound, 4, codes)
            yield codes[:nbytes].copy(), escaped

    def call():
        codes, out = np.empty(bounded_capacity(n, noisy.dtype), np.uint8), np.empty_like(noisy)
        made, escaped = zip(*streams(codes), strict=True)
        for given in (made[:2], made):
            nbytes, several = cpu.sum_bounded(list(given), n, noisy.dtype, bound, codes)
            cpu.decode_bounded(codes[:nbytes], bound, 3, out)
            yield from (codes[:nbytes].copy(), several, out.copy())
        yield from (*made, escaped)

    same_for_every_team(team, lambda: list(call()))
    stream = next(streams(np.empty(bounded_capacity(n, noisy.dtype), np.uint8)))[0]
    with pytest.raises(InvalidArgument, match="codes must hold one whole stream"):
        cpu.decode_bounded(stream[:-1], bound, 1, smooth)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_updates(team, rng, vectors, dtype):
    memory, grad = vectors
    at = some_indices(rng, grad.size, 0.2, dtype)
    mixed = rng.integers(0, grad.size, 5 * PART).astype(dtype)  # some of them twice: the last one stays
    values, many = (rng.standard_normal(k).astype(grad.dtype) for k in (at.size, mixed.size))

    def call():
        for indices in (at, mixed):
            gathered = np.empty(indices.size, grad.dtype)
            cpu.gather(memory, grad, indices, gathered)
            yield gathered
        yield changed("scatter", memory, at, values)
        yield changed("scatter", memory, mixed, many)
        yield changed("scatter_add", memory, at, values)
        yield changed("clear", memory, mixed)
        yield changed("masked_update", memory, grad, at, values, 0.3)
        yield changed("dense_update", memory, grad, grad, 0.3)
        yield changed("axpby", memory, 0.5, grad, 2.0, memory)
        yield changed("divide_by_root", memory, np.abs(grad), 0.5)
        yield changed("scale", memory, 0.3)

    same_for_every_team(team, lambda: list(call()))


@pytest.mark.parametrize("share", [0.001, 0.2, 1.0])
def test_lists(team, rng, share):
    n = 40 * PART + int(rng.integers(0, 99))
    lists = [some_indices(rng, n, share) for _ in range(3)]
    values = [rng.standard_normal(one.size).astype(np.float32) for one in lists]
    first, second, _ = lists

    def call():
        yield from cpu.common(first, second)
        yield cpu.union(lists, n)
        yield from cpu.add_lists(lists, values, n)
        yield cpu.largest_gap(first)
        for width in (20, 41, 60):
            packed = np.empty(-(-first.size * width // 8), np.uint8)
            cpu.pack_gaps(first, width, packed)
            back = np.empty_like(first)
            cpu.unpack_gaps(packed, width, n, back)
            yield packed
            yield back
        bitmap, back = np.empty(-(-n // 8), np.uint8), np.empty_like(first)
        cpu.pack_bitmap(first, n, bitmap)
        cpu.unpack_bitmap(bitmap, n, back)
        yield bitmap
        yield back
        cpu.pack_bitmap(first[::-1].copy(), n, bitmap)
        yield bitmap

    same_for_every_team(team, lambda: list(call()))
    np.testing.assert_array_equal(cpu.union(lists, n), np.unique(np.concatenate(lists)))


def test_refusals_name_the_same_index(team, rng):
    at = some_indices(rng, 40 * PART, 0.2)
    packed = np.empty(-(-at.size * 9 // 8), np.uint8)
    cpu.pack_gaps(at, 9, packed)
    outside = int(at[at.size // 2])
    for threads in TEAMS:
        team(threads)
        with pytest.raises(InvalidArgument, match=rf"in \[0, {outside}\), got {outside}$"):
            cpu.unpack_gaps(packed, 9, outside, np.empty_like(at))
        with pytest.raises(InvalidArgument, match=rf"in \[0, {at[-1]}\), got {at[-1]}$"):
            cpu.clear(np.zeros(at[-1]), at)


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "import os, numpy as np\nfrom mpicomp.ops import _cpu, cpu\n" + code]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600)


def add_ones(n: int = 10 * PART) -> bool:
    x = np.ones(n)
    cpu.add(x, np.ones(n))
    return bool((x == 2).all())


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")  # Python 3.12 warns of any fork
def test_a_forked_child_has_threads_of_its_own(team):
    team(3)
    assert add_ones()
    child = os.fork()
    if child == 0:
        os._exit(0 if add_ones() and _cpu.threads() == 3 else 1)
    assert os.waitpid(child, 0)[1] == 0
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(add_ones, [PART, 10 * PART, 20 * PART]) == [True] * 3
    assert add_ones()


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")  # Python 3.12 warns of any fork
def test_fork_while_another_thread_uses_the_pool(team):
    team(3)
    stop = threading.Event()

    def busy() -> None:
        while not stop.is_set():
            add_ones()

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if add_ones() else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def test_threads_of_python_share_the_pool(team):
    team(3)
    wrong = []
    threads = [threading.Thread(target=lambda: wrong.extend(not add_ones() for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 80 and not any(wrong)


def test_no_thread_is_started_at_import_and_none_delays_the_exit():
    code = """
count = lambda: len(os.listdir('/proc/self/task'))
before = count()
cpu.add(np.ones(1000), np.ones(1000))
short = count()
_cpu.force_threads(3)
x = np.ones(1 << 20)
cpu.add(x, x)
print(short - before, count() - short)
"""
    done = python(code)
    assert done.returncode == 0 and done.stdout.split() == ["0", "2"], done


def test_workers_follow_the_callers_cpus(team):
    cpus = os.sched_getaffinity(0)
    try:
        for mask in (cpus, {max(cpus)}, cpus):
            os.sched_setaffinity(0, mask)
            team(0)
            assert _cpu.threads() <= len(mask)
            team(3)
            assert add_ones()
            helpers = [tid for tid in os.listdir("/proc/self/task") if int(tid) != os.getpid()]
            followed = [tid for tid in helpers if os.sched_getaffinity(int(tid)) == mask]
            assert len(followed) >= 2
    finally:
        os.sched_setaffinity(0, cpus)


@pytest.mark.parametrize("value", ["0", "00", "-1", "two", "1.5", " 2", "\u00b2"])
def test_nonsense_is_refused(value):
    with pytest.raises(InvalidArgument, match="MPICOMP_NUM_THREADS must be a number of threads, 1 or more, got"):
        _cpu.set_threads(value)
    said = python("print(_cpu.threads())", MPICOMP_NUM_THREADS=value)
    assert said.returncode and f"number of threads, 1 or more, got '{value}': set or unset it" in said.stderr
    short = python("x = np.ones(9)\ncpu.add(x, x)\nprint(x[0])", MPICOMP_NUM_THREADS=value)
    assert short.stdout == "2.0\n", short.stderr


@pytest.mark.parametrize(("value", "threads"), [("1", 1), ("2", 2), ("007", 7), ("9" * 400, 10**9), ("", 10**9)])
def test_environment_sets_the_number_up_to_the_cpus(value, threads):
    said = python("print(_cpu.threads(), len(os.sched_getaffinity(0)))", MPICOMP_NUM_THREADS=value)
    found, cpus = map(int, said.stdout.split())
    assert found == min(threads, cpus)
