"""Accuracy and speed of DiLoCo: a character Transformer trained by four workers.

    python tests/benchmarks/bench_diloco.py FIGURE... [--quick] [--full] [--seed N] [--output FILE]    all: every figure

accuracy  loss on the held-out end of Tinyshakespeare (MPICOMP_DATA, default ../shared/data) beside AdamW with averaged
          gradients, after as many tokens; --full trains one million parameters instead of 0.1 million
speed     an inner step of one million parameters over four hosts of 100 Mbit/s (needs root and iproute2): share of the
          speed without any exchange
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]
from figures import ALONE, VENV, answer, main, ms  # noqa: E402
from hosts import Hosts, Unavailable  # noqa: E402

TEXT = Path(os.environ.get("MPICOMP_DATA", HERE.parents[2] / "shared" / "data")) / "tinyshakespeare" / "input.txt"
STEP = HERE.parent / "cluster" / "diloco_step.py"
WORKERS, EVERY, RATE = 4, 30, "100mbit"
MOST_LOST, LEAST_SHARE = 0.02, 0.95  # nats, of the speed
SPARSE = "topk:density=0.02,codec=sign"  # the composition closest to SparseLoCo
SIZES = {"small": (64, 2), "full": (128, 5)}  # width, layers
# Learning rates: the best of 0.002, 0.004 and 0.008 for averaged gradients in 608 steps.
SETTINGS = ("--network", "transformer", "--bptt", 64, "--batch", 8, "--schedule", "cosine:end=0.1", "--warmup", 0.1,
            "--clip", 1, "--epochs", 12, "--eval-every", 490, "--eval-tokens", 50000)  # fmt: skip
ADAMW = "adam:decoupled=yes,weight_decay=0.01"
OUTER = ("--outer", "diloco", "--every", EVERY)
WARM = (*OUTER, "--outer-warmup", 3)
STEADY = ("--outer-lr", 1, "--outer-momentum", 0.3)  # the better ones from random weights
TRAININGS = {
    "AdamW, averaged gradients": (),
    "DiLoCo, warm-up": WARM,
    "DiLoCo, int8, warm-up": (*WARM, "--outer-warmup-scheme", "int8", "--scheme", "int8"),
    "DiLoCo, outer_lr=1, outer_momentum=0.3, warm-up": (*WARM, *STEADY),
    "DiLoCo, outer_lr=1, outer_momentum=0.3": (*OUTER, *STEADY),
    f"DiLoCo, {SPARSE}, outer_lr=1, outer_momentum=0, warm-up": (*WARM, "--outer-lr", 1, "--outer-momentum", 0,
                                                                 "--scheme", SPARSE),
}  # fmt: skip
MODES = {
    "without exchange": None, "AdamW, averaged gradients": "every step", "DiLoCo": {},
    "DiLoCo, int8": {"scheme": "int8"}, "DiLoCo, delay=5": {"delay": 5},
    "DiLoCo, fragments=3, delay=5": {"fragments": 3, "delay": 5},
}  # fmt: skip
full, seed = "--full" in sys.argv, int(sys.argv[sys.argv.index("--seed") + 1]) if "--seed" in sys.argv else 0


def accuracy(quick):
    """Loss after as many tokens as data-parallel AdamW."""
    if not quick and not TEXT.exists():
        raise Unavailable(f"no {TEXT}: set MPICOMP_DATA to the folder of the data sets")
    rows, raw, least = [], {}, None
    width, layers = SIZES["full" if full else "small"]
    for name, options in TRAININGS.items():
        report = trained(quick, width, layers, options)
        raw[name], last = report["series"], report["series"][-1]
        least = last["test_loss"] if least is None else least
        lost = last["test_loss"] - least
        row = {"training": name, "steps": last["step"], "test loss": f"{last['test_loss']:.4f}",
               "bits per worker": f"{last['bits']:.3g}", "nats above": f"{lost:+.3f}"}
        if options:
            row["nats above"] += f" (at most {MOST_LOST}: {'met' if lost <= MOST_LOST else 'MISSED'})"
        rows.append(row)
        print(row, file=sys.stderr, flush=True)
    text = (f"{WORKERS} workers, width {width}, {layers} layers, every={EVERY}, seed {seed}, lr 0.008 with cosine; "
            "warm-up: a quarter of the steps")  # fmt: skip
    return text, rows, raw


def trained(quick, width, layers, options):
    """The report of a training command. Averaged gradients need one process only."""
    ranks = WORKERS if options else 1
    data = ("--data", "synthetic:tokens=3000,symbols=12,seed=1", "--epochs", 0.3) if quick else ("--data", TEXT)
    settings = ("--network", "transformer") if quick else SETTINGS
    command = ["timeout", "--kill-after=10", 3600, VENV / "bin/mpirun", "-n", ranks, VENV / "bin/mpicomp", "train",
               "language", *settings, *data, "--width", width, "--layers", layers, "--optimizer", ADAMW, "--lr", 0.008,
               "--seed", seed, "--workers", WORKERS, "--json", *options]  # fmt: skip
    environment = {**os.environ, **ALONE}
    return report_of(subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True))


def report_of(done):
    if done.returncode:
        sys.exit(f"the job failed with status {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout)


def speed(quick):
    """An inner step beside one without any exchange."""
    width, layers = SIZES["full"]
    settings = {"width": width, "layers": layers, "bptt": 64, "batch": 8, "every": EVERY, "periods": 5, "modes": MODES}
    if quick:
        settings |= {"width": 8, "layers": 1, "bptt": 8, "every": 7, "periods": 1}
    with Hosts(WORKERS, RATE) as cluster:
        one = answer(cluster.run(1, ["python", STEP, json.dumps(settings)], time_limit=1500))
    alone, rows = one["seconds"]["without exchange"], []
    for name, seconds in one["seconds"].items():
        share = median(a / b for a, b in zip(alone, seconds, strict=True))
        row = {"training": name, "step ms": ms(median(seconds)), "share of the speed": f"{share:.1%}"}
        if name.startswith("DiLoCo"):
            row["share of the speed"] += f" (at least {LEAST_SHARE:.0%}: {'met' if share >= LEAST_SHARE else 'MISSED'})"
        rows.append(row)
    text = f"{WORKERS} hosts, 100 Mbit/s, two hosts a core; {one['parameters']} parameters, every={settings['every']}"
    return text, rows, one


FIGURES = {"accuracy": accuracy, "speed": speed}


if __name__ == "__main__":
    words = [word for i, word in enumerate(sys.argv[1:], 1) if word not in ("--full", "--seed")
             and sys.argv[i - 1] != "--seed"]  # fmt: skip
    sys.exit(main(FIGURES, __doc__, prefix="diloco-", arguments=words))
