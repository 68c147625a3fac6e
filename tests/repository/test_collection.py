"""Collection of ``pytest``: of the whole tree the tests that one process can run; some folders only if named."""

import subprocess
import sys
from pathlib import Path

import pytest
from run_all import APART

TESTS = Path(__file__).resolve().parents[1]


def collected(*arguments):
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments]
    return subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, timeout=300)


def test_folders_apart_are_left_out_of_the_whole_tree():
    """Else files of one name in two folders collide. (Nothing else is collected here: that would take long.)"""
    others = [path for path in TESTS.iterdir() if path.is_dir() and path.name not in APART]
    done = collected("tests", *(f"--ignore={path}" for path in others))
    assert "::" not in done.stdout and "ERROR" not in done.stdout + done.stderr
    for name, how in APART.items():
        assert f"left out: tests/{name}; run it by {how}" in done.stdout


@pytest.mark.long("collects a folder anew")
def test_a_folder_apart_is_collected_where_it_is_named():
    done = collected("tests/mpi/comm/test_verbs.py", "tests/pytorch")
    assert "tests/mpi/comm/test_verbs.py::" in done.stdout and "left out" not in done.stdout
