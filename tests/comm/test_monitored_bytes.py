"""The bytes we say we sent against those that Open MPI's own monitoring counted, for each collective of ours."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

import pytest
from run_mpi import job_command, job_environment, run_limited

JOB = Path(__file__).with_name("monitored_job.py")
SIZE = 4
# enable=2 keeps messages of the MPI library's own collectives apart from those a program sends itself.
MONITOR = {"pml": "ob1,monitoring", "pml_monitoring_enable": "2", "pml_monitoring_enable_output": "3"}


def monitored(folder: Path, size: int, script: Path, *arguments: str) -> tuple[str, dict[str, Counter], Counter]:
    """Run a job; its output, {"E" | "I": bytes sent by each rank} (ours | inside MPI's collectives), our messages."""
    options = MONITOR | {"pml_monitoring_filename": str(folder / "monitor")}
    settings = {f"OMPI_MCA_{name}": value for name, value in options.items()}
    command = [*job_command(Path(sys.executable), size), str(script), *arguments]
    code, output = run_limited(command, job_environment(**settings), 300, folder)
    assert code == 0, output
    sent, messages = {"E": Counter(), "I": Counter()}, Counter()
    for path in folder.glob("monitor*.prof"):
        for kind, rank, _, nbytes, count in re.findall(
            r"^([EI])\t(\d+)\t(\d+)\t(\d+) bytes\t(\d+) msgs", path.read_text(), re.MULTILINE
        ):
            sent[kind][int(rank)] += int(nbytes)
            messages[int(rank)] += int(count) if kind == "E" else 0
    return output, sent, messages


@pytest.fixture(autouse=True)
def open_mpi():
    vendor = run_limited([sys.executable, "-c", "from mpi4py import MPI; print(*MPI.get_vendor())"],
                         job_environment(), 60, Path("/nonexistent"))[1]  # fmt: skip
    if "Open MPI" not in vendor:
        pytest.skip("monitoring is Open MPI's")


@pytest.mark.parametrize(
    "what", ["ring", "halving_doubling", "direct", "broadcast", "gather_to_all", "short gather_to_all"]
)
def test_counted_by_the_transport(tmp_path, what):
    output, sent, messages = monitored(tmp_path, SIZE, JOB, what)
    ours = {int(rank): (int(nbytes), int(count)) for rank, nbytes, count in
            re.findall(r"rank (\d+) sent (\d+) messages (\d+)", output)}  # fmt: skip
    assert len(ours) == SIZE
    assert ours == {rank: (sent["E"][rank], messages[rank]) for rank in range(SIZE)}
    assert sum(sent["E"].values()) > 0


def test_what_native_is_counted_as(tmp_path):
    """The formula for MPI's own schedule is the least it can send; what it does send here is within 1 % of it."""
    output, sent, _ = monitored(tmp_path, SIZE, JOB, "native")
    counted = {int(rank): int(nbytes) for rank, nbytes in re.findall(r"rank (\d+) .* modelled (\d+)", output)}
    assert sum(sent["E"].values()) == 0
    for rank in range(SIZE):
        assert counted[rank] == pytest.approx(sent["I"][rank], rel=0.01)
