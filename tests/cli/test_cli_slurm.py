"""``mpicomp slurm`` prints the scripts of slurm/, with what was asked for in them and nothing else changed."""

from __future__ import annotations

import difflib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpicomp.cli.root import root
from mpicomp.cli.slurm import read
from mpicomp.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted(path.stem for path in (ROOT / "slurm").glob("*.sbatch"))
WAYS = {
    "cpu-openmpi": ["bench"],
    "cpu-mpich": ["bench", "--mpi", "pmi2"],
    "cpu-cray": ["bench", "--mpi", "cray_shasta"],
    "gpu": ["bench", "--gpus", "4"],
    "container": ["bench", "--container", "mpicomp.sif"],
    "bench-array": ["bench", "--array"],
    "train-requeue": ["train"],
}
DIRECTIVES = {
    "--nodes": "7", "--ntasks-per-node": "5", "--cpus-per-task": "3", "--time": "1-02:30", "--partition": "big",
    "--account": "p0.x",
}  # fmt: skip


def printed(*arguments: str) -> str:
    result = CliRunner().invoke(root, ["slurm", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def committed(name: str) -> str:
    return (ROOT / "slurm" / name).read_text()


def changes(name: str, *arguments: str) -> list[str]:
    """The lines that differ from the committed file, as printed."""
    diff = difflib.ndiff(committed(f"{name}.sbatch").splitlines(), printed(*arguments).splitlines())
    return [line[2:] for line in diff if line.startswith("+ ")]


def test_every_script_has_a_command_that_prints_it():
    assert sorted(WAYS) == SCRIPTS
    for name, arguments in WAYS.items():
        assert printed(*arguments) == committed(f"{name}.sbatch")
    assert printed("env") == committed("env.sh")


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_option_sets_its_line_and_no_other(name):
    given = [word for pair in DIRECTIVES.items() for word in pair]
    expected = [f"#SBATCH {option}={value}" for option, value in DIRECTIVES.items()]
    assert sorted(changes(name, *WAYS[name], *given)) == sorted(expected)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_command_replaces_the_default_one(name):
    new = changes(name, *WAYS[name], "--", "one", "two words", "it's")
    device = " --device gpu" * (name == "gpu")
    assert new == [f"(($#)) || set -- {WAYS[name][0]} one 'two words' 'it'\"'\"'s'{device}"]


def test_arrays_of_a_gpu_job_are_where_one_says():
    assert changes("gpu", *WAYS["gpu"], "--", "--device=cpu") == ["(($#)) || set -- bench --device=cpu"]


def test_the_kind_of_pmi_goes_to_every_srun():
    text = printed("bench", "--gpus", "8", "--mpi", "pmi2")
    assert text.count("srun --mpi=pmi2 ") == committed("gpu.sbatch").count("srun --mpi=pmix ") == 2
    assert "#SBATCH --gpus-per-node=8\n#SBATCH --ntasks-per-node=8\n" in text
    assert "srun --mpi=pmix " not in text


def test_a_script_for_cray_names_its_launcher_and_modules():
    text = printed("bench", "--mpi", "cray_shasta", "--nodes", "8")
    assert re.findall(r"^srun --mpi=(\w+) ", text, re.MULTILINE) == ["cray_shasta"] and "#SBATCH --nodes=8\n" in text
    assert "\n#module load PrgEnv-gnu cray-mpich cray-python\n" in text and "pmi2" not in text and "PMI2" not in text


def test_an_image_with_a_blank_in_its_name_stays_one_word():
    lines = printed("bench", "--container", "/a b/c.sif").splitlines()
    line = next(line for line in lines if line.startswith("image="))
    shown = subprocess.run(["bash", "-c", f'{line}; printf %s "$image"'], capture_output=True, text=True, check=True)
    assert shown.stdout == "/a b/c.sif"


def test_training_without_requeue_is_a_plain_job():
    default = next(line for line in committed("train-requeue.sbatch").splitlines() if line.startswith("(($#))"))
    assert changes("cpu-openmpi", "train", "--no-requeue") == [default]
    assert changes("cpu-mpich", "train", "--no-requeue", "--mpi", "pmi2") == [default]


@pytest.mark.parametrize("name", [*(f"{name}.sbatch" for name in SCRIPTS), "env.sh"])
def test_scripts_are_bash(name):
    done = subprocess.run(["bash", "-n", ROOT / "slurm" / name], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


STUB = """#!/bin/bash
case "${0##*/} $*" in
    "scontrol show config") echo "SlurmdPort              = $PORT" ;;
    "scontrol show hostnames"*) echo localhost; echo no.invalid ;;
    *) echo "${0##*/} $*" >> "$TOLD"
esac
case ${0##*/} in
    squeue) echo "$STATE" ;;
    sbatch) cat >> "$TOLD" ;;
    srun) exit $CODE ;;
esac
"""


def handed_to_slurm(folder: Path, name: str, code: int = 0, said: str = "", **variables: str) -> list[str]:
    """The lines by which the script ``name`` calls Slurm's programs, and a script that it hands in.

    Its srun ends with ``code``, and so does the script, which says ``said`` on standard error.
    """
    told, programs = folder / "told", folder / "programs"
    programs.mkdir()
    for program in ("srun", "sbatch", "scontrol", "squeue"):
        (programs / program).write_text(STUB)
        (programs / program).chmod(0o755)
    (programs / "env.sh").write_text("echo 'an env.sh on the PATH' >&2")
    (folder / "env.sh").write_text(read("env.sh"))
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "TOLD": str(told), "SLURM_JOB_ID": "7",
                   "CODE": str(code), **variables}  # fmt: skip
    script = ROOT / "slurm" / f"{name}.sbatch"
    done = subprocess.run(["bash", script], cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr.strip()) == (code, said)
    return told.read_text().splitlines()


@pytest.mark.parametrize("answers", [True, False])
def test_nodes_are_lost_only_if_this_one_is_seen_to_live(tmp_path, answers):
    """Elsewhere slurmds may listen on other ports: a mistake would be requeued for ever."""
    with socket.create_server(("127.0.0.1", 0)) as slurmd:
        port = str(slurmd.getsockname()[1] if answers else 1)
        said = "failed with lost nodes, which do not answer: no.invalid" if answers else ""
        for name in ("train-requeue", "cpu-openmpi"):
            (folder := tmp_path / name).mkdir()
            lines = handed_to_slurm(folder, name, 3, said, PORT=port, SLURM_JOB_NODELIST="localhost,no.invalid")
            assert (lines[-1] == "scontrol requeue 7") == (answers and name == "train-requeue")


@pytest.mark.parametrize("state", ["RUNNING:None", "COMPLETING:TimeLimit", "", "COMPLETING:None"])
def test_a_stopped_training_is_requeued_unless_it_was_cancelled(tmp_path, state):
    """And no other task of its array, whose number can be that of a task."""
    cancelled = state == "COMPLETING:None"
    said = "cancelled: not back into the queue. To go on all the same: scontrol requeue 7_3" if cancelled else ""
    array = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    lines = handed_to_slurm(tmp_path, "train-requeue", 75, said, STATE=state, **array)
    assert [line for line in lines if "requeue" in line] == ["scontrol requeue 7_3"] * (not cancelled)


ARRAY = {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "0", "SLURM_ARRAY_TASK_MIN": "0",
         "SLURM_JOB_PARTITION": "big"}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_starts_its_command_by_srun(tmp_path, name):
    last = handed_to_slurm(tmp_path, name, **ARRAY)[-1]
    assert last.startswith("srun --mpi=")
    assert f"mpicomp {WAYS[name][0]} " in last


def test_the_job_that_merges_an_array_goes_where_the_array_went(tmp_path):
    for account, option in (("", ""), ("p0.x", "--account=p0.x ")):
        (folder := tmp_path / f"of-{account}").mkdir()
        submitted, *script = handed_to_slurm(folder, "bench-array", **ARRAY, SLURM_JOB_ACCOUNT=account)
        assert f" --partition=big {option}--output=bench-5/merge.out" in submitted
        assert script[0] == "#!/bin/bash"


@pytest.mark.parametrize("text", ["30", "5:00", "12:00:00", "2-00", "1-12:30", "7-00:00:00"])
def test_times_as_slurm_has_them(text):
    assert changes("cpu-openmpi", "bench", "--time", text) == [f"#SBATCH --time={text}"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["--time", "3h"], "--time must be minutes, h:mm:ss or days-hours, got '3h'"),
     (["--time", "1\n#SBATCH --exclusive"], "--time must be"),
     (["--partition", "a b"], "--partition must be a name as Slurm has them, got 'a b'"),
     (["--container", ""], "--container must be the path of an image, got ''"),
     (["--gpus", "2", "--array"], "--gpus and --array have scripts of their own: choose one")],
)  # fmt: skip
def test_bad_values_are_refused(arguments, said):
    with pytest.raises(InvalidArgument) as caught:
        CliRunner().invoke(root, ["slurm", "bench", *arguments], catch_exceptions=False)
    assert said in str(caught.value)


@pytest.mark.parametrize("arguments", [["heat"], ["logreg", "--data", "a.txt", "--ft"]])
def test_training_without_checkpoints_is_not_requeued(arguments):
    with pytest.raises(InvalidArgument, match="keeps no checkpoints to resume from: give --no-requeue"):
        CliRunner().invoke(root, ["slurm", "train", "--", *arguments], catch_exceptions=False)
    assert CliRunner().invoke(root, ["slurm", "train", "--no-requeue", "--", *arguments]).exit_code == 0


@pytest.mark.parametrize("trace", [["--trace", "run.h5"], ["--trace=run.h5"]])
def test_a_trace_that_a_second_start_would_meet_is_refused(trace):
    with pytest.raises(InvalidArgument, match="submit with MPICOMP_TRACE=run"):
        CliRunner().invoke(root, ["slurm", "train", "--", "logreg", *trace], catch_exceptions=False)
    assert " --trace" in printed("train", "--no-requeue", "--", "logreg", *trace)


def test_the_scripts_are_installed_with_the_package(tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "build_py", "--build-lib", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    installed = {path.name for path in (tmp_path / "mpicomp" / "slurm").iterdir()}
    assert installed == {"env.sh", *(f"{name}.sbatch" for name in SCRIPTS)}
    assert read("env.sh") == (tmp_path / "mpicomp" / "slurm" / "env.sh").read_text()
