"""``mpicomp info``: alone and under the launchers, and its GPU probe with a CuPy of NumPy's making."""

from __future__ import annotations

import json
import os

import pytest

from mpicomp.cli import info

# Arrays that MPI can read, as those in CUDA memory are for an MPI that takes them.
CUPY = """
import os, numpy
from numpy import arange, asarray as asnumpy, zeros_like
class runtime:
    getDeviceCount = staticmethod(lambda: 1)
    deviceSynchronize = staticmethod(lambda: {})
class cuda:
    runtime = runtime
"""
RAISE = "(_ for _ in ()).throw(RuntimeError('an illegal address'))"
ONE_WRONG = "\nasnumpy = lambda array, calls=iter(range(8)): array + (next(calls) == 2)\n"


def findings(start, command, tmp_path, text):
    (tmp_path / "cupy.py").write_text(text)
    places = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    ended = start(command, "info", "--probe-gpu", "--json", PYTHONPATH=places, MPICOMP_GPU_PATH="auto")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    assert document["format"] == "mpicomp-info"
    return document, {finding["name"]: finding["value"] for finding in document["findings"]}


def test_settings_that_differ_between_ranks_are_told():
    checked = {"MPICOMP_CHECK": "1"}
    settings = checked, checked, {}, {**checked, "MPICOMP_OPS": "cpu"}
    ranks = [{"rank": rank, "settings": own} for rank, own in enumerate(settings)]
    assert info._other_settings(ranks[:2]) == ""
    assert info._other_settings(ranks).startswith("; rank 2-3: other values of MPICOMP_CHECK, MPICOMP_OPS (")


@pytest.mark.parametrize(("ranks", "value", "advice"), [
    ([("", 1), ("", 1)], "1 per rank", ""),
    ([("2", 2), ("", 4)], "2 to 4 per rank", ""),
    ([("", 2), ("8", 2)], "2 per rank", "rank 1: MPICOMP_NUM_THREADS=8, but it may run on 2 CPUs"),
    ([("", 2), ("two", 0)], "0 to 2 per rank", "rank 1: MPICOMP_NUM_THREADS must be 1 or more, got 'two'"),
])  # fmt: skip
def test_threads_of_operations(ranks, value, advice):
    table = [{"rank": rank, "settings": {"MPICOMP_NUM_THREADS": wanted} if wanted else {}, "threads": threads}
             for rank, (wanted, threads) in enumerate(ranks)]  # fmt: skip
    found = next(info._operations(table))
    assert found.value == value and found.advice.startswith(advice) and bool(found.advice) == bool(advice)


def test_of_a_job(job, command, tmp_path):
    """The probe is a job of its own, whatever launcher started this one."""
    document, found = findings(job, command, tmp_path, CUPY.format("None"))
    assert len(document["ranks"]) == job.ranks
    names = {"MPI", "launcher", "GPU path", "CPUs", "load", "/dev/shm", "folder", "op threads", "ops", "HDF5"}
    assert names <= set(found)
    assert "MPICOMP_GPU_PATH=auto" in found["settings"]
    assert found["GPU probe"].startswith("MPI takes CUDA memory: Allreduce, Isend and Irecv are right")


@pytest.mark.long("waits for the probe")
def test_ranks_wait_for_a_probe_that_takes_longer_than_they_would_for_others(one_job, command, tmp_path):
    slow = CUPY.format("__import__('time').sleep(4)")  # MPICOMP_LEAVE is 3
    assert "GPU probe" in findings(one_job, command, tmp_path, slow)[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (CUPY.format("os.kill(os.getpid(), 11)"), "MPI does not take CUDA memory: ended by signal 11"),
        (CUPY.format(RAISE), "failed with exit code 1: RuntimeError: an illegal address"),
        (CUPY.format("None") + ONE_WRONG, "MPI does not take CUDA memory: 1000 of 2099152 elements are wrong"),
        ("raise ImportError('no CUDA')", "not possible here: MissingExtra"),
    ],
    ids=["crash", "error", "wrong", "no CuPy"],
)
def test_the_probe_says_what_happened(alone, command, tmp_path, text, said):
    assert said in findings(alone, command, tmp_path, text)[1]["GPU probe"]
