"""One rank's data loader dies or stalls, or its backward fails: the job ends with a message."""

import os
import re
import subprocess
import sys
from pathlib import Path

import needs_torch  # noqa: F401
import pytest
from progress import PATIENCE_S, slowed

HERE = Path(__file__).resolve().parent
LAUNCHER = Path(sys.executable).parent / "mpiexec"
pytestmark = pytest.mark.skipif(not LAUNCHER.exists(), reason="no mpiexec beside the interpreter")


def run(timeout, *job):
    environment = {
        **os.environ, "MPICOMP_TIMEOUT": timeout, "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }  # fmt: skip
    command = ["timeout", "--kill-after=5", PATIENCE_S, LAUNCHER, "-n", "2", sys.executable, *job]
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, errors="replace")
    assert done.returncode in (1, 70), done.stderr
    assert "END" not in done.stdout
    return done.stderr


@pytest.mark.parametrize(("how", "seconds", "text"), [
    ("dead", 60, r"rank 1 of 2 .*OSError: batch 3 cannot be read"),
    ("slow", 8, r"rank 1 of 2 .* is outside"),
])
def test_a_loader_that_fails(how, seconds, text):
    timeout = f"{float(slowed(seconds)):g}"
    output = run(timeout, HERE / "loader_job.py", how)
    assert re.search(text, output), output
    if how == "slow":
        # The first to wait for so long: one of two buckets, or the message about parameters without a gradient.
        call = r"(step 3 of topk:density=0.5(,seed=\d+)?, .*|allreduce_in_place \d+ elements uint8 max)"
        assert re.search(rf"rank 0 of 2 .* is in #\d+ {call}.* MPICOMP_TIMEOUT={timeout}", output), output


def test_a_rank_that_catches_the_error_of_its_backward_alone():
    """Its exchanges of that step have met the others'; those of its next step would meet the rest of them."""
    output = run(f"{float(slowed(60)):g}", HERE / "backward_job.py")
    assert re.search(r"Disagreement: a backward has ended by an exception on some ranks alone.* rank 0: 0 left "
                     r"without a step; rank 1: 1 left", output), output
