"""Memory of long arrays that is kept for the next ones."""

import os
import subprocess
import sys
import threading

import ml_dtypes
import numpy as np
import pytest

from mpicomp.ops import _cpu, cpu
from mpicomp.ops.cpu.composed import LONG

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
