"""Time of an all-reduce with an error bound over four emulated hosts, beside MPI's own and ``auto`` (as root).

    python tests/benchmarks/bench_bounded.py [--quick] [--output FILE]

``mpicomp bench --bound --relative`` on fields of 256^3 float32 (``--quick``: 64^3). ``--output`` writes the rows to a
JSON file, from which `plot_cluster.py` draws the picture of docs/bounded.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "cluster"))

from hosts import Hosts

RATES = {"100mbit": 2, "1gbit": 5, "10gbit": 9}  # timed rounds
BOUNDS = "1e-2,1e-3,1e-4,1e-5"
FIELDS = ("smooth", "turbulence", "noise")
KEPT = ("algorithm", "bound", "data", "nbytes", "n_ranks", "t_med_us", "t_min_us", "wire_bytes", "ratio", "ran", "vs")


def measure(cluster: Hosts, data: str, size: str, rounds: int) -> list[dict[str, object]]:
    """Rows of the bench on a job with one rank per host."""
    command = ["mpicomp", "bench", "--bound", BOUNDS, "--relative", "--data", data, "--sizes", size, "--iters",
               str(rounds), "--warmup", "0", "--no-check", "--format", "jsonl"]  # fmt: skip
    done = cluster.run(1, command, time_limit=600)
    if done.returncode:
        sys.exit(f"the job failed with status {done.returncode}\n{done.stdout}{done.stderr}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [{name: row[name] for name in KEPT} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of a short field: a try-out, not a figure")
    parser.add_argument("--output", type=Path, metavar="FILE", help="JSON file of the rows, by rate")
    options = parser.parse_args()
    kept: dict[str, list[dict[str, object]]] = {}
    print("| rate | field | run | bound | ms | native / it | ratio | ran |\n|" + " --- |" * 8)
    for rate, rounds in RATES.items():
        with Hosts(4, rate) as cluster:
            for data in FIELDS:
                rows = measure(cluster, data, "1M" if options.quick else "64M", 1 if options.quick else rounds)
                kept.setdefault(rate, []).extend(rows)
                for row in rows:
                    ms, ratio = row["t_med_us"] / 1e3, f"{row['ratio']:.1f}" if row["ratio"] else ""
                    print(f"| {rate} | {data} | {row['algorithm']} | {row['bound'] or ''} | {ms:.1f} | "
                          f"{row['vs']:.2f} | {ratio} | {row['ran'] or ''} |", flush=True)
    if options.output:
        options.output.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
