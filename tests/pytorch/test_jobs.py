"""A data loader that dies or stalls on one rank ends the job with a message."""

import os
import re
import subprocess
import sys
from pathlib import Path

import needs_torch  # noqa: F401
import pytest
from progress import PATIENCE_S, slowed

JOB = Path(__file__).resolve().parent / "loader_job.py"
LAUNCHER = Path(sys.executable).parent / "mpiexec"


@pytest.mark.skipif(not LAUNCHER.exists(), reason="no mpiexec beside the interpreter")
@pytest.mark.parametrize(("how", "seconds", "text"), [
    ("dead", 60, r"rank 1 of 2 .*OSError: batch 3 cannot be read"),
    ("slow", 8, r"rank 1 of 2 .* is outside"),
])
def test_a_loader_that_fails(how, seconds, text):
    timeout = f"{float(slowed(seconds)):g}"
    environment = {
        **os.environ, "MPICOMP_TIMEOUT": timeout, "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }  # fmt: skip
    command = ["timeout", "--kill-after=5", PATIENCE_S, LAUNCHER, "-n", "2", sys.executable, JOB, how]
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, errors="replace")
    assert done.returncode in (1, 70), done.stderr
    assert "END" not in done.stdout
    assert re.search(text, done.stderr), done.stderr
    if how == "slow":
        # The first to wait for so long: one of two buckets, or the message about parameters without a gradient.
        call = r"(step 3 of topk:density=0.5(,seed=\d+)?, .*|allreduce_in_place \d+ elements uint8 max)"
        assert re.search(rf"rank 0 of 2 .* is in #\d+ {call}.* MPICOMP_TIMEOUT={timeout}", done.stderr), done.stderr
