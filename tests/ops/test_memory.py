"""Memory of long arrays that is kept for the next ones."""

import os
import resource
import signal
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

from mpicomp.ops import _cpu, cpu
from mpicomp.ops.cpu.kept_arrays import LONG

# The address sanitizer is to find a use after the end, so nothing is kept for it.
keeps = pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="nothing is kept under the sanitizer")


def address(x):
    return x.__array_interface__["data"][0]


@keeps
@pytest.mark.parametrize("n, following", [(LONG, LONG), (70_000, 71_000), (1 << 20, 1 << 20), (5_000_001, 4_900_000)])
def test_the_next_array_of_about_a_length_gets_the_memory(n, following):
    first = cpu.empty(n, np.float32)
    at = address(first)
    part = first[1:]
    del first
    assert address(cpu.empty(n, np.float32)) != at  # a view still needs it
    del part
    assert address(cpu.empty(following, np.int32)) == at


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.int64, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("n", [0, 1, LONG - 1, LONG, LONG + 7, 3_000_000])
def test_arrays_are_those_of_numpy(n, dtype):
    x, like = cpu.empty(n, dtype), np.empty(n, dtype)
    assert (x.shape, x.dtype, x.strides) == (like.shape, like.dtype, like.strides)
    assert x.flags.writeable and x.flags.aligned and (n < LONG or address(x) % 64 == 0)
    x[:] = 1
    assert (x == 1).all()


@pytest.mark.parametrize("n", [2**50, 2**59, 2**62, 2**63])
def test_more_than_there_is_is_refused(n):
    with pytest.raises(MemoryError):
        cpu.empty(n, np.float64)


def test_no_two_arrays_share_memory(rng):
    """Whatever the order in which they come and go, on several threads."""
    failures = []

    def come_and_go(seed):
        random, alive = np.random.default_rng(seed), {}
        for number in range(400):
            x = cpu.empty(int(random.integers(LONG, 4 * LONG)), np.int32)
            x[:] = number
            alive[number] = x
            if len(alive) > 10:
                gone = int(random.choice(list(alive)))
                if not (alive.pop(gone) == gone).all():
                    failures.append(gone)

    threads = [threading.Thread(target=come_and_go, args=(rng.integers(2**32),)) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not failures


def first_accesses(call):
    """Pages that the system gives in a call; of several calls the fewest."""
    faults = []
    for _ in range(10):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        call()
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(faults)


@pytest.fixture
def two_threads():
    """However many CPUs there are: each thread of an operation has memory of its own."""
    _cpu.force_threads(2)
    yield
    _cpu.force_threads(0)


@keeps
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["top_k", "top_k of ties", "threshold", "bin_select", "common", "union", "add_lists",
                                  "concatenate", "zeros"])
def test_operations_repeated_are_given_no_new_pages(rng, name):
    n, k = 1 << 22, 1 << 18
    x = rng.standard_normal(n).astype(np.float32)
    lists = [np.sort(rng.choice(n, k, replace=False)).astype(np.int32) for _ in range(3)]
    values = [x[:k]] * 3
    signs, whole = np.sign(x), [(0, n)]
    call = {
        "top_k": lambda: cpu.top_k(None, x, whole, [k]),
        "top_k of ties": lambda: cpu.top_k(None, signs, whole, [k]),
        "threshold": lambda: cpu.threshold(None, x, whole, [1.5]),
        "bin_select": lambda: cpu.bin_select(None, x, whole, 50),
        "common": lambda: cpu.common(lists[0], lists[1]),
        "union": lambda: cpu.union(lists, n),
        "add_lists": lambda: cpu.add_lists(lists, values, n),
        "concatenate": lambda: cpu.concatenate([x, x], np.float32),
        "zeros": lambda: cpu.zeros(n, np.float32),
    }[name]
    pages = 4 * k // resource.getpagesize()  # of one list
    assert first_accesses(call) < pages // 8


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")  # Python 3.12 warns of any fork
def test_a_child_can_take_memory_whatever_its_parents_threads_do(two_threads):
    n, stop = 1 << 21, threading.Event()
    lists = [np.arange(0, n, 64, dtype=np.int32)] * 2

    def busy():
        while not stop.is_set():
            cpu.union(lists, n)

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for one in threads:
        one.start()
    try:
        for _ in range(400):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # which ends it
                cpu.empty(LONG, np.float32)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for one in threads:
            one.join()


def said_by(code):
    """The output of a process of its own, which keeps nothing yet."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@keeps
def test_at_most_twice_as_much_is_kept_as_was_in_use_at_once():
    code = """
from mpicomp.ops import _cpu, cpu
largest = 0
for n in range(20_000, 2_000_000, 37_003):
    cpu.empty(n, "u1"), cpu.empty(2 * n, "f4")
    largest = max(largest, _cpu.waiting_nbytes())
print(largest / (9 * 2_000_000))
"""
    assert 1.5 < float(said_by(code)) < 2.3


@keeps
def test_a_long_array_is_not_given_back_for_short_ones():
    """Steps of two kinds take turns, each with short arrays of lengths that the other does not have."""
    code = """
from mpicomp.ops import cpu
where = []
for _ in range(5):
    where.append(cpu.empty(1 << 24, "u1").ctypes.data)
    for n in range(20_000, 60_000, 7_000):
        cpu.empty(n, "u1")
print(len(set(where)))
"""
    assert int(said_by(code)) == 1


@keeps
def test_what_waits_is_counted():
    before, x = _cpu.waiting_nbytes(), cpu.empty(1 << 22, np.float64)
    assert _cpu.waiting_nbytes() <= before
    del x
    assert _cpu.waiting_nbytes() >= 1 << 25
