"""The job scripts of slurm/ on a real Slurm: they run, and say what is wrong where something is."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import h5py
import hosts
import numpy as np
import pytest
from progress import PATIENCE_S

import mpicomp.trace
import slurm

SCRIPTS = hosts.REPOSITORY / "slurm"
REASON = slurm.why_unavailable()
for mpi in ("openmpi", "mpich"):
    if REASON is None and not (hosts.REPOSITORY / f".venv/{mpi}/bin/mpicomp").exists():
        REASON = f"needs .venv/{mpi} (make test-cluster)"
pytestmark = [pytest.mark.skipif(REASON is not None, reason=str(REASON)), pytest.mark.timeout(3600)]
SMALL = ("--sizes", "64K", "--max-time", "1")


@pytest.fixture(scope="module")
def cluster():
    with slurm.Slurm(4, "10gbit") as up:
        yield up


def environment(cluster, mpi="openmpi", **extra):
    """Return the environment of sbatch: which files and which MPI the scripts use."""
    repository = hosts.REPOSITORY
    paths = {"MPICOMP_ENV": SCRIPTS / "env.sh", "MPICOMP_VENV": repository / ".venv" / mpi, "PYTHONPATH": repository}
    paths = {name: str(path) for name, path in paths.items()}
    return {**cluster.environment(), **paths, **extra}


def submit(cluster, folder, script, *arguments, options=(), **variables):
    """Submit a script from `folder`, its output going to job.out there; return the job's number."""
    words = ["--output=job.out", "--ntasks-per-node=1", *options, SCRIPTS / f"{script}.sbatch", *arguments]
    return cluster.submit(*words, cwd=folder, env=environment(cluster, **variables))


def said(folder):
    """Return what a job printed."""
    path = folder / "job.out"
    return path.read_text() if path.exists() else ""


def state(cluster, number, folder):
    """Wait for a job; return its state, and its output for what goes wrong."""
    (job,) = cluster.wait(number)
    return job["JobState"], said(folder)


def completed(cluster, number, folder):
    """Wait until a job has completed; return its output."""
    ended, text = state(cluster, number, folder)
    assert ended == "COMPLETED", f"{ended}\n{text}\n{cluster.logs()}"
    return text


def hosts_of(document):
    return sorted(rank["host"] for rank in document["ranks"])


@pytest.mark.parametrize(
    ("script", "mpi", "nodes"), [("cpu-openmpi", "openmpi", 4), ("cpu-mpich", "mpich", 2)], ids=["openmpi", "mpich"]
)
def test_a_bench_runs_on_nodes_of_their_own(cluster, tmp_path, script, mpi, nodes):
    bench = ("bench", "--algorithm", "native,ring", "--scheme", "scalecom:chunk=112", *SMALL, "--output", "b.json")
    number = submit(cluster, tmp_path, script, *bench, options=[f"--nodes={nodes}"], mpi=mpi)
    completed(cluster, number, tmp_path)
    document = json.loads((tmp_path / "b.json").read_text())
    assert hosts_of(document) == [f"node{i}" for i in range(nodes)]
    assert [row["ok"] for row in document["rows"]] == [True] * 3


def test_an_array_of_sizes_is_merged_by_a_job_that_waits_for_it(cluster, tmp_path):
    bench = ("bench", "--algorithm", "native,ring", "--max-time", "1")
    number = submit(cluster, tmp_path, "bench-array", *bench, options=["--array=0,1,5"])
    assert [job["JobState"] for job in cluster.wait(number)] == ["COMPLETED"] * 3, said(tmp_path)
    (merge,) = [job for job in cluster.jobs("") if job["JobName"] == "mpicomp-merge"]
    results = tmp_path / f"bench-{number}"
    assert cluster.wait(merge["JobId"])[0]["JobState"] == "COMPLETED", (results / "merge.out").read_text()
    rows = json.loads((results / "merged.json").read_text())["rows"]
    assert [row["nbytes"] for row in rows] == sorted(row["nbytes"] for row in rows)
    launches = {(row["nbytes"], row["algorithm"]): row["launches"] for row in rows}
    assert launches == {(size, name): 1 + (size == 65536) for size in (65536, 1 << 20) for name in ("native", "ring")}


@pytest.mark.parametrize("script", ["gpu", "container"])
def test_what_cannot_run_here_is_accepted(cluster, script):
    options = ["--gpus-per-node=2"] if script == "gpu" else []
    done = cluster.command(
        "sbatch", "--test-only", "--ntasks-per-node=2", *options, SCRIPTS / f"{script}.sbatch",
        env=environment(cluster), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "to start at" in done.stderr


def test_a_script_that_was_filled_in_runs(cluster, tmp_path):
    given = ["--nodes", "2", "--ntasks-per-node", "1", "--time", "1", "--partition", "main"]
    command = [sys.executable, "-m", "mpicomp.cli", "slurm", "bench", *given, "--", "pingpong", "--sizes", "1K"]
    printed = subprocess.run(command, cwd=hosts.REPOSITORY, capture_output=True, text=True, timeout=PATIENCE_S,
                             check=True)
    (tmp_path / "job.sbatch").write_text(printed.stdout)
    number = cluster.submit("--output=job.out", "job.sbatch", cwd=tmp_path, env=environment(cluster))
    assert "native" in completed(cluster, number, tmp_path)
    (job,) = cluster.jobs(number)
    assert (job["NumNodes"], job["TimeLimit"], job["Partition"]) == ("2", "00:01:00", "main")


def test_the_launcher_of_another_mpi_is_refused_before_anything_is_written(cluster, tmp_path):
    bench = ("bench", *SMALL, "--output", "b.json")
    number = submit(cluster, tmp_path, "cpu-mpich", *bench, options=["--nodes=2"])  # PMI2, and Open MPI
    assert state(cluster, number, tmp_path)[0] == "FAILED"
    assert "this process is rank 0 of 1, but" in said(tmp_path)
    assert "srun --mpi=pmix" in said(tmp_path)
    assert not (tmp_path / "b.json").exists()


def test_ranks_see_what_env_sh_sets_in_a_job_that_hides_the_environment(cluster, tmp_path):
    given = environment(cluster)
    names = [name for name in given if name.startswith(("OMPI_", "PYTHONPATH", "MPICOMP_VENV"))]
    lines = [f"export {name}={shlex.quote(given[name])}" for name in names]
    (tmp_path / "env.sh").write_text("\n".join([*lines, (SCRIPTS / "env.sh").read_text()]))
    number = submit(cluster, tmp_path, "cpu-openmpi", "info", options=["--nodes=2", "--export=NONE"])
    assert "2 ranks on 2 nodes" in completed(cluster, number, tmp_path)


def test_a_missing_env_file_is_named(cluster, tmp_path):
    number = submit(cluster, tmp_path, "cpu-openmpi", "info", MPICOMP_ENV="/nowhere/env.sh")
    assert state(cluster, number, tmp_path)[0] == "FAILED"
    assert "/nowhere/env.sh: No such file" in said(tmp_path)


PYTORCH = """
import sys
sys.path.append({packages!r})  # PyTorch is in the environment of Open MPI alone
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import mpicomp.torch

dist.init_process_group("mpicomp")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.full((8, 4), float(dist.get_rank()))).square().mean().backward()
    optimizer.step()
print(dist.get_world_size(), "ranks hold", model.module.weight.sum().item())
dist.destroy_process_group()
"""


def test_pytorch_starts_on_the_backend_by_srun(cluster, tmp_path):
    packages = Path(sys.prefix) / f"lib/python3.{sys.version_info.minor}/site-packages"
    if not (packages / "torch").is_dir():
        pytest.skip("needs PyTorch (make test-cluster)")
    (tmp_path / "train.py").write_text(PYTORCH.format(packages=str(packages)))
    (tmp_path / "job.sbatch").write_text('#!/bin/bash\nsource "$MPICOMP_ENV"\nsrun --mpi=pmi2 python train.py\n')
    # Slurm's PMI2 can lose the end of a long address, which names all transports.
    variables = environment(cluster, "mpich", UCX_TLS="tcp,self")
    options = ("--output=job.out", "--nodes=2", "--ntasks-per-node=1")
    number = cluster.submit(*options, "job.sbatch", cwd=tmp_path, env=variables)
    lines = [line for line in completed(cluster, number, tmp_path).splitlines() if "ranks hold" in line]
    assert len(lines) == 2 and len(set(lines)) == 1 and lines[0].startswith("2 ranks hold")


# -- training that is stopped: by the time limit, by a node that goes away

TRAINING = ("train", "logreg", "--data", "synthetic:n=400,d=60", "--epochs", "1", "--scheme", "scalecom:chunk=8",
            "--json")  # fmt: skip
SLOW = """
source {env}
if [ -z "${{SLURM_RESTART_COUNT:-}}" ]; then export MPICOMP_FAULT=slow:rank=1,seconds=0.3; fi
"""


@pytest.fixture
def slow(tmp_path):
    """An env.sh with which training takes minutes, but seconds when it has been requeued."""
    path = tmp_path / "slow.sh"
    path.write_text(SLOW.format(env=SCRIPTS / "env.sh"))
    return {"MPICOMP_ENV": str(path)}


def last_document(text):
    """Return the last JSON document in a job's output."""
    return json.JSONDecoder().raw_decode(text, text.rindex('{\n "format"'))[0]


def arrays(checkpoint):
    """Return all that a checkpoint holds, by file and name."""
    found = {}
    for path in sorted(checkpoint.glob("*.h5")):
        with h5py.File(path) as file:
            names = []
            file.visit(names.append)
            found.update({(path.name, name): file[name][()] for name in names if isinstance(file[name], h5py.Dataset)})
    return found


@pytest.fixture(scope="module")
def uninterrupted(cluster, tmp_path_factory):
    """The folder of a training that ran without a stop, and what it printed."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    number = submit(cluster, folder, "train-requeue", *TRAINING, options=["--nodes=4"])
    return folder / f"checkpoint-{number}", last_document(completed(cluster, number, folder))


def same_as(uninterrupted, checkpoint, text):
    """Compare a training with the uninterrupted one, bit for bit."""
    expected, document = uninterrupted
    got = last_document(text)
    for name in ("series", "f_x0", "steps"):
        assert got[name] == document[name]
    last = (expected / "latest").read_text().strip()
    assert (checkpoint / "latest").read_text().strip() == last
    ours, theirs = arrays(checkpoint / last), arrays(expected / last)
    assert ours.keys() == theirs.keys()
    different = [key for key in ours if not np.array_equal(ours[key], theirs[key])]
    assert not different


def test_a_job_near_its_time_limit_is_requeued_and_resumes_with_the_same_bits(cluster, tmp_path, slow, uninterrupted):
    # Sent 25 to 55 s after the begin, since Slurm looks every 30 s: the ranks listen, and have not ended.
    options = ["--nodes=4", "--time=2", "--signal=B:USR1@65"]
    number = submit(cluster, tmp_path, "train-requeue", *TRAINING, options=options, MPICOMP_TRACE="run", **slow)
    text = completed(cluster, number, tmp_path)
    (job,) = cluster.jobs(number)
    assert int(job["Restarts"]) >= 1  # more on a loaded machine, where the rest takes longer than a minute, too
    assert "stopped by SIGUSR1" in text
    assert "resumed after step" in text
    same_as(uninterrupted, tmp_path / f"checkpoint-{number}", text)
    assert (tmp_path / "run-0.h5").exists() and (tmp_path / "run-1.h5").exists()


TOO_EARLY = """
source {env}
if [ -z "${{SLURM_RESTART_COUNT:-}}" ]; then PATH={folder}:$PATH; fi
"""


def test_a_job_whose_ranks_get_the_signal_before_they_listen_is_requeued(cluster, tmp_path):
    """Its command ends by SIGUSR1 the first time."""
    (tmp_path / "early.sh").write_text(TOO_EARLY.format(env=SCRIPTS / "env.sh", folder=tmp_path))
    command = tmp_path / "mpicomp"
    command.write_text("#!/bin/sh\nkill -USR1 $$\n")
    command.chmod(0o755)
    options = {"options": ["--nodes=1"], "MPICOMP_ENV": str(tmp_path / "early.sh")}
    number = submit(cluster, tmp_path, "train-requeue", *TRAINING, **options)
    assert last_document(completed(cluster, number, tmp_path))["steps"]
    (job,) = cluster.jobs(number)
    assert int(job["Restarts"]) == 1


STOPS_AT_A_SIGNAL = """#!{python}
import os, pathlib, signal, sys
signals = {{signal.SIGTERM, signal.SIGUSR1}}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
if "SLURM_RESTART_COUNT" not in os.environ:
    pathlib.Path("ready-" + os.environ["SLURM_JOB_ID"]).touch()
    signal.sigwait(signals)
    sys.exit(75)
"""


def test_one_job_of_an_array_is_requeued_and_a_cancelled_one_stays_so(cluster, tmp_path):
    """Their command ends as a training does that has saved, and at once after a restart."""
    (tmp_path / "mpicomp").write_text(STOPS_AT_A_SIGNAL.format(python=sys.executable))
    (tmp_path / "mpicomp").chmod(0o755)
    (tmp_path / "first.sh").write_text(f"source {SCRIPTS}/env.sh\nPATH={tmp_path}:$PATH\n")
    options = {"options": ["--nodes=1", "--array=0,1"], "MPICOMP_ENV": str(tmp_path / "first.sh")}
    number = submit(cluster, tmp_path, "train-requeue", *TRAINING, **options)
    cluster.until(lambda: len([*tmp_path.glob("ready-*")]) == 2, "both have begun")
    task = {job["JobId"] == number: f"{number}_{job['ArrayTaskId']}" for job in cluster.jobs(number)}
    cluster.command("scancel", "--signal=USR1", "--batch", task[True])  # that with the array's number
    (stopped,) = cluster.wait(task[True])
    assert (stopped["JobState"], stopped["Restarts"]) == ("COMPLETED", "1"), said(tmp_path)
    (other,) = cluster.jobs(task[False])
    assert (other["JobState"], other["Restarts"]) == ("RUNNING", "0"), said(tmp_path)
    cluster.command("scancel", task[False])
    (other,) = cluster.wait(task[False])
    assert (other["JobState"], other["Restarts"]) == ("CANCELLED", "0"), said(tmp_path)


def bring_back(cluster, name):
    """Make a node that went away usable again, and wait until it is."""
    cluster.kill_node(name)
    cluster.daemons[name].wait()
    cluster.set_link(name, "up")
    cluster.start_node(name)
    cluster.until(cluster.all_up, "all nodes are up again")


def recovered(spool, output):
    """Build a trace from the journals of a killed run; return how many ranks have each step in it."""
    command = [sys.executable, "-m", "mpicomp.cli", "trace", "recover", spool, "-o", output]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return mpicomp.trace.steps(output)["steps"]["ranks"].tolist()


def first_checkpoint(cluster, folder):
    cluster.until(lambda: (folder / "latest").exists(), "a checkpoint is there")


def test_a_node_that_is_cut_off_ends_the_job_and_leaves_trace_and_checkpoint(cluster, tmp_path, slow, uninterrupted):
    begun = (*TRAINING, "--checkpoint", "saved", "--checkpoint-every", "2", "--trace", "run.h5")
    lost = submit(cluster, tmp_path, "cpu-openmpi", *begun, options=["--nodes=4"], **slow)
    first_checkpoint(cluster, tmp_path / "saved")
    cluster.set_link("node2", "down")
    ended, text = state(cluster, lost, tmp_path)
    bring_back(cluster, "node2")
    assert ended == "NODE_FAIL"
    assert "Node failure on node2" in text
    ranks = recovered(tmp_path / "run.h5.spool", tmp_path / "recovered.h5")
    assert len(ranks) >= 2 and set(ranks) == {4}
    rest = (*TRAINING, "--checkpoint", "saved", "--resume")
    number = submit(cluster, tmp_path, "cpu-openmpi", *rest, options=["--nodes=4"])
    text = completed(cluster, number, tmp_path)
    assert "resumed after step" in text
    same_as(uninterrupted, tmp_path / "saved", text)


def test_a_node_whose_processes_are_killed_is_named_and_the_training_requeued(cluster, tmp_path, slow, uninterrupted):
    begun = (*TRAINING, "--checkpoint-every", "2")  # the later one counts: the script says 1000
    number = submit(
        cluster, tmp_path, "train-requeue", *begun, options=["--nodes=4"], MPICOMP_TRACE="run", **slow
    )
    saved = tmp_path / f"checkpoint-{number}"
    first_checkpoint(cluster, saved)
    cluster.kill_node("node2")
    cluster.until(lambda: "back into the queue" in said(tmp_path), "the job is requeued", ended_too=["node2"])
    bring_back(cluster, "node2")
    text = completed(cluster, number, tmp_path)
    assert "lost nodes: node2; to be resumed from the last checkpoint" in text
    assert "resumed after step" in text
    spools = [*tmp_path.glob("run-*.h5.spool")]  # run-1 if Slurm had to start the job twice
    assert len(spools) == 1, f"{spools}\n{text}\n{cluster.logs()}"
    ranks = recovered(spools[0], tmp_path / "recovered.h5")
    assert len(ranks) >= 2 and set(ranks) == {4}
    same_as(uninterrupted, saved, text)


def alive(text):
    """Return the processes that have `text` on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # gone meanwhile
            continue
        if text in words and int(path.parent.name) != os.getpid():
            found.append(words)
    return found


def test_nothing_is_left_of_a_slurm_whose_owner_was_killed():
    run = ["sh", "-c", "srun --nodes=4 hostname | sort; echo up; exec srun --nodes=4 sleep 3600"]
    command = [sys.executable, slurm.__file__, "--", *run]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as owner:
        prefix = f"{hosts.PREFIX}{owner.pid}-"
        shown = [owner.stdout.readline().strip() for _ in range(5)]
        owner.send_signal(signal.SIGKILL)
    assert shown == ["node0", "node1", "node2", "node3", "up"]
    hosts.clean()
    assert not [path for path in hosts.directories() if path.name.startswith(prefix)]
    assert not hosts.namespaces(prefix)
    assert not alive(prefix)
    assert prefix not in Path("/proc/mounts").read_text()
    assert not Path("/etc/slurm/slurm.conf").exists()
