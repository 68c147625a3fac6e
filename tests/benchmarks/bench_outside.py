"""The bench and the recorder against measures from outside: for a quiet machine with a C compiler.

    python tests/benchmarks/bench_outside.py FIGURE... [--quick] [--output FILE]     all: both

native     ``mpicomp bench --algorithm native`` beside the same loop in C (plain_allreduce.c), 2 ranks, 16 KiB to 1 MiB,
           under Open MPI and MPICH: they are to agree within 20 %. Launches take turns; each figure is their median.
           The same loop by mpi4py alone (plain_allreduce.py) tells what of a difference is Python's.
recorder   what recording adds to a ScaleCom step of a million elements (bench_trace.py): to be under 2 %

"Of OSU" are medians that OSU's and ReproMPI's programs gave on a two-core virtual machine (docs of neither): they suit
a like machine only, and are no target.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from figures import ALONE, answer, main, verdict  # noqa: E402

MPIS = {"Open MPI": ("openmpi", "mpirun"), "MPICH": ("mpich", "mpiexec")}
SIZES = [16 << 10, 64 << 10, 256 << 10, 1 << 20]
OSU_US = {("Open MPI", 64 << 10): 16, ("Open MPI", 256 << 10): 39, ("Open MPI", 1 << 20): 180,
          ("MPICH", 64 << 10): 41, ("MPICH", 256 << 10): 168, ("MPICH", 1 << 20): 577}  # fmt: skip
AGREE = 1 / 1.2
OVERHEAD = 2.0  # percent


def run(command, limit=300):
    words = ["timeout", "--kill-after=10", limit, *command]
    return subprocess.run(list(map(str, words)), env={**os.environ, **ALONE}, capture_output=True, text=True)


def compiled(binaries, folder):
    program = Path(folder) / "plain_allreduce"
    done = run([binaries / "mpicc", "-O2", "-o", program, HERE / "plain_allreduce.c"])
    if done.returncode:
        sys.exit(f"mpicc failed: {done.stderr}")
    return program


def plain(job, program, rounds, steps):
    return answer(run([*job, *program, rounds, steps, *SIZES]))


def in_bench(job, python, rounds, steps):
    sizes = ",".join(map(str, SIZES))
    done = run([*job, python, "-m", "mpicomp.cli", "bench", "-a", "native", "--sizes", sizes, "-n", rounds,
                "--agg-iters", steps, "--max-time", 60, "--format", "jsonl", "-q"])  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return [json.loads(line)["t_med_us"] for line in done.stdout.splitlines()]


def native(quick):
    """mpicomp bench --algorithm native over the same loop in C."""
    launches, rounds = (1, 20) if quick else (5, 1000)
    rows, raw = [], {}
    for mpi, (venv, launcher) in MPIS.items():
        binaries = HERE.parents[1] / ".venv" / venv / "bin"
        job, python = [binaries / launcher, "-n", 2], binaries / "python"
        with tempfile.TemporaryDirectory() as folder:
            program = compiled(binaries, folder)
            for steps in (1,) if quick else (1, 50):
                few = max(20, rounds // steps)
                found = [(plain(job, [program], few, steps),
                          plain(job, [python, HERE / "plain_allreduce.py"], few, steps),
                          in_bench(job, python, few, steps)) for _ in range(launches)]  # fmt: skip
                raw[f"{mpi}, {steps} steps"] = found
                rows += [row(mpi, steps, i, found) for i in range(len(SIZES))]
    return f"2 ranks, float32, {launches} launches of {rounds} rounds", rows, raw


def row(mpi, steps, i, found):
    c, plain_python, ours = (median(launch[which][i] for launch in found) for which in range(3))
    times = {"C us": f"{c:.1f}", "mpi4py us": f"{plain_python:.1f}", "bench us": f"{ours:.1f}",
             "of OSU us": OSU_US.get((mpi, SIZES[i]), "-")}  # fmt: skip
    agree = verdict(min(c, ours) / max(c, ours), AGREE)
    return {"under": mpi, "steps a barrier": steps, "KiB": SIZES[i] >> 10, **times, "shorter / longer": agree}


def recorder(quick):
    """A ScaleCom step of a million elements with a recorder and without."""
    python = HERE.parents[1] / ".venv" / "openmpi" / "bin" / "python"
    command = [python, HERE / "bench_trace.py", "--json", *["--quick"] * quick]
    raw = [json.loads(run(command).stdout) for _ in range(1 if quick else 5)]
    percent = median(one["overhead_percent"] for one in raw)
    met = "met" if percent < OVERHEAD else "MISSED"
    rows = [{"step us": f"{median(one['step_without_us'] for one in raw):.0f}",
             "recording adds": f"{percent:.2f} % (under {OVERHEAD:g} %: {met})",
             "an event ns": f"{median(one['event_full_ns'] for one in raw):.0f}"}]  # fmt: skip
    return f"one rank, scalecom:chunk=112, median of {len(raw)} runs", rows, raw


FIGURES = {"native": native, "recorder": recorder}

if __name__ == "__main__":
    sys.exit(main(FIGURES, __doc__, "outside "))
