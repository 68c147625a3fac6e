"""Schemes under Adam: NeuMF on MovieLens's u.data, and a small Transformer on a text, by ``mpicomp train``.

    python tests/benchmarks/bench_adam.py recommend --data u.data
    python tests/benchmarks/bench_adam.py language --data input.txt

Four virtual workers on one rank. Prints the metric at the end, the best of the three evaluations, and the bits that a
worker sends beside those of dense float32. Neither data set is part of the project; without --data the apps' synthetic
data are used.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

COMMON = ("--workers", "4")
FIGURES: dict[str, tuple[str, ...]] = {
    "recommend": ("--epochs", "15", "--eval-every", "480"),
    "language": ("--level", "char", "--network", "transformer", "--width", "64", "--layers", "2", "--bptt", "64",
                 "--batch", "8", "--epochs", "1", "--tokens", "800000", "--eval-tokens", "50000", "--clip", "0",
                 "--eval-every", "130"),
}  # fmt: skip
QUICK: dict[str, tuple[str, ...]] = {
    "recommend": ("--epochs", "0.1", "--eval-every", "1000"),
    "language": ("--epochs", "0.1", "--eval-every", "1000", "--tokens", "8000", "--eval-tokens", "500"),
}
SYNTHETIC: dict[str, tuple[str, ...]] = {
    "recommend": ("--data", "synthetic"),
    "language": ("--data", "synthetic:tokens=20000", "--level", "word"),
}
RATE = {"recommend": 0.005, "language": 0.003}  # of Adam
Row = tuple[str, str, float, tuple[str, ...]]
ROWS: tuple[Row, ...] = (  # scheme, optimizer, factor of the rate, further options
    ("dense", "adam", 1.0, ()),
    ("topk:density=0.03", "adam", 1.0, ()),
    ("topk:density=0.03", "adam", 1.0, ("--rate-factor",)),
    ("topk:density=0.03,memory=ef21", "adam:beta1=0", 1.0, ()),
    ("topk:density=0.03,memory=adam-update", "sgd", 1.0, ()),
    ("topk:density=0.035,memory=adam-update", "sgd", 1.5, ()),
    ("powersgd:rank=1", "adam", 1.0, ()),
)  # fmt: skip


def run(app: str, data: str | None, seed: str, row: Row, quick: bool) -> list[dict[str, float]]:
    """Evaluations of a training."""
    scheme, optimizer, factor, further = row
    command = [sys.executable, "-m", "mpicomp.cli", "train", app, *COMMON, *FIGURES[app], "--seed", seed,
               *(("--data", data) if data else SYNTHETIC[app]), "--scheme", scheme, "--optimizer", optimizer,
               "--lr", str(factor * RATE[app]), "--json", *further, *(QUICK[app] if quick else ())]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    series: list[dict[str, float]] = json.loads(done.stdout)["series"]
    return series


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("app", choices=FIGURES)
    parser.add_argument("--data", help="Real data; synthetic ones without.")
    parser.add_argument("--quick", action="store_true", help="Try out the command: its numbers are no figures.")
    parser.add_argument("--seeds", default="1,2")
    given = parser.parse_args()
    dense: dict[str, float] = {}
    metric = "hr@10" if given.app == "recommend" else "nats per character"
    print(f"### {given.app}: {metric} under Adam\n")
    print("| scheme, optimizer, rate | seed | last | best | bits against dense |\n| --- | --- | --- | --- | --- |")
    for row in ROWS:
        for seed in given.seeds.split(",")[: 1 if given.quick else None]:
            series = run(given.app, given.data, seed, row, given.quick)
            key = "metric" if given.app == "recommend" else "test_loss"
            values, bits = [point[key] for point in series], series[-1]["bits"]
            dense.setdefault(seed, bits)
            best = max(values) if given.app == "recommend" else min(values)
            rate = f"{row[2] * RATE[given.app]:g}{' with --rate-factor' * bool(row[3])}"
            print(f"| `{row[0]}`, {row[1]}, {rate} | {seed} | {values[-1]:.3f} | {best:.3f} "
                  f"| {bits / dense[seed]:.3f} |", flush=True)


if __name__ == "__main__":
    main()
