"""Time of an all-reduce with an error bound over four emulated hosts, beside MPI's own and ``auto`` (as root).

    python tests/benchmarks/bench_bounded.py [--quick]

Fields of 256^3 float32 (``--quick``: 64^3), different on each rank: *smooth* sums sines of the wave numbers 1 to 8 with
the spectrum k^-5/3, *noise* is normal. The bound is relative to the field's range. Times are medians of the slowest
rank; the calls take turns. The ratio is that of the message's bytes to those of the codes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

import mpicomp

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from figures import answer
from hosts import Hosts

RATES = {"100mbit": 1, "1gbit": 5, "10gbit": 9}  # turns
BOUNDS = (1e-2, 1e-3, 1e-4)


def smooth(rng: np.random.Generator, side: int) -> np.ndarray:
    axes = np.meshgrid(*[np.linspace(0, 1, side, dtype=np.float32)] * 3, indexing="ij", copy=False)
    field = np.zeros((side,) * 3, np.float32)
    for k in range(1, 9):
        direction = rng.normal(size=3)
        waves = k * direction / np.linalg.norm(direction)
        angle = sum(np.float32(2 * np.pi * wave) * axis for wave, axis in zip(waves, axes, strict=True))
        field += np.float32(k ** (-5 / 6)) * np.sin(angle + np.float32(rng.uniform(0, 2 * np.pi)))
    return field.reshape(-1)


def job(side: int, turns: int) -> None:
    """Measure on the ranks of this job; rank 0 prints a JSON object."""
    comm = mpicomp.Comm(MPI.COMM_WORLD)
    rng = np.random.default_rng(comm.rank)
    fields = {"smooth": smooth(rng, side), "noise": rng.standard_normal(side**3).astype(np.float32)}
    out = np.empty(side**3, np.float32)
    found = []
    for name, field in fields.items():
        runs = {"native": lambda field=field: MPI.COMM_WORLD.Allreduce(field, out),
                "auto": lambda field=field: comm.Allreduce(field, out)}
        for bound in BOUNDS:
            runs[f"{bound:g}"] = lambda field=field, bound=bound: comm.Allreduce(field, out, bound=bound, relative=True)
        times: dict[str, list[float]] = {run: [] for run in runs}
        stats = {}
        for turn in range(turns + 1):
            for run, call in runs.items():
                comm.Barrier()
                begin = time.perf_counter()
                call()
                if turn:  # the first warms up
                    times[run].append(time.perf_counter() - begin)
                if run in ("native", "auto"):
                    continue
                stats[run] = comm.bounded_stats
        for run, own in times.items():
            slowest = comm.allreduce(statistics.median(own), MPI.MAX)
            more = {"ratio": stats[run].ratio, "algorithm": stats[run].algorithm} if run in stats else {}
            found.append({"field": name, "run": run, "ms": 1e3 * slowest, **more})
    if comm.rank == 0:
        print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one turn of a short field: a try-out, not a figure")
    parser.add_argument("--job", nargs=2, type=int, metavar=("SIDE", "TURNS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job(*options.job)
        return
    print("| rate | field | bound | ms | native / it | ratio | ran |\n| --- | --- | --- | --- | --- | --- | --- |")
    for rate, turns in RATES.items():
        sizes = ["64", "1"] if options.quick else ["256", str(turns)]
        with Hosts(4, rate) as cluster:
            rows = answer(cluster.run(1, ["python", __file__, "--job", *sizes], time_limit=300))
        for row in rows:
            native = next(one["ms"] for one in rows if (one["field"], one["run"]) == (row["field"], "native"))
            ratio = f"{row['ratio']:.1f}" if "ratio" in row else ""
            print(f"| {rate} | {row['field']} | {row['run']} | {row['ms']:.1f} | {native / row['ms']:.2f} | {ratio} | "
                  f"{row.get('algorithm', '')} |", flush=True)


if __name__ == "__main__":
    main()
