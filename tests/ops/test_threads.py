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
from mpicomp.ops import _cpu, cpu

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


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", ["add", "multiply", "minimum", "maximum"])
def test_reductions(team, rng, name, n):
    x, y = rng.standard_normal((2, n)).astype(np.float32)

    def call():
        out = x.copy()
        getattr(cpu, name)(out, y)
        return [out]

    same_for_every_team(team, call)


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", "import os, numpy as np\nfrom mpicomp.ops import _cpu, cpu\n" + code]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=600)


def add_ones(n: int = 10 * PART) -> bool:
    x = np.ones(n)
    cpu.add(x, np.ones(n))
    return bool((x == 2).all())


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
