"""A rank that dies or raises while others wait for it in shared memory: the job ends, and leaves no memory behind."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

FAULTY = str(Path(__file__).resolve().parent / "faulty_shared.py")


@pytest.mark.parametrize("how", ["killed", "raises"])
def test_the_job_ends_and_its_memory_goes(job, how):
    ended = job([FAULTY], how)
    assert ended.code != 0
    if how == "raises":
        assert "this rank has had enough" in ended.err
    pid = re.search(r"pid (\d+)", ended.out)
    assert pid, ended.out + ended.err
    assert not [name for name in os.listdir("/dev/shm") if name.startswith(f"mpicomp-{pid[1]}-")]
