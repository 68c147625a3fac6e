"""Training of three models: accuracy at equal steps, bytes, and time per step over four emulated hosts.

    python tests/benchmarks/bench_training.py FIGURE... [--quick] [--seeds 0,1] [--output FILE]     all: every figure

cnn          a CNN on Fashion-MNIST, SGD with momentum
ratings      NeuMF on made-up ratings, Adam
transformer  a character Transformer of 0.1 million parameters on Tinyshakespeare, AdamW
steps        a step of each of these schemes at 100 Mbit/s, 1 and 10 Gbit/s: the exchange over four hosts (needs root
             and iproute2), and the computing time of one worker on one core

The first three train without emulated links, four virtual workers in one process (DiLoCo and 0/1 Adam: in four). Data:
the folder MPICOMP_DATA, default ../shared/data. tests/docs/docs_tables.py joins all four: the time to an accuracy is
the number of steps until then, times the time per step.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]
from figures import ALONE, VENV, main, ms, on_hosts  # noqa: E402
from hosts import Hosts, Unavailable  # noqa: E402

DATA = Path(os.environ.get("MPICOMP_DATA", HERE.parents[2] / "shared" / "data"))
WORKERS, EVERY = 4, 30
RATES = ("100mbit", "1gbit", "10gbit")


class Scheme(NamedTuple):
    options: str  # of the training
    timed: str  # scheme of an exchange
    first_steps: int = 0
    first: str = "dense"  # scheme of an exchange in the first steps
    every: int = 1  # steps per exchange, on average; more than one: each worker is a rank


class Model(NamedTuple):
    app: str
    data: str  # within DATA, or synthetic
    options: str
    value: str  # of a Point
    target: float
    parameters: int
    steps_of_a_worker: float  # epochs of about 40 steps of one worker
    schemes: dict[str, Scheme]
    quick: str


ONE_BIT = "signsgd:exchange=pieces"  # of momenta
WARM = "warmup_density=1,stages=1"
UPDATE = "topk:density=0.035,memory=adam-update"


def schemes(optimizer, rate, **further):
    """Schemes that every model is trained with."""
    plain = f"{optimizer} --lr {rate}"
    return {"dense": Scheme(plain, "dense"), "half": Scheme(f"{plain} --scheme half", "half"),
            "int8": Scheme(f"{plain} --scheme int8", "int8"),
            "int4, error memory": Scheme(f"{plain} --scheme int4:memory=residual", "int4:memory=residual"),
            **further}  # fmt: skip


def scalecom(optimizer, rate, epochs, first_steps, further=""):
    """ScaleCom by chunks of 100 after a dense warm-up."""
    name = f"scalecom:chunk=100,beta=0.1{further}"
    options = f"{optimizer} --lr {rate} --scheme {name},{WARM} --compress-warmup {epochs}"
    return {"ScaleCom 100x, dense warm-up": Scheme(options, name, first_steps)}


def one_bit(rate, warmup, decay=""):
    """1-bit Adam with two schemes of gradients in its warm-up."""
    options = f"--optimizer onebit-adam:warmup={warmup}{decay} --lr {rate}"
    return {f"1-bit Adam, {name} warm-up": Scheme(f"{options} --scheme {first}", ONE_BIT, warmup, first)
            for name, first in (("dense", "dense"), ("int4", "int4:memory=residual"))}


def zero_one(rate, warmup, doubling, decay=""):
    """0/1 Adam whose warm-up is that of 1-bit Adam; half of the later steps are local."""
    settings = f"warmup={warmup},kappa={warmup},doubling={doubling},longest=4{decay}"
    options = f"--optimizer zero-one-adam:{settings} --lr {rate} --scheme int4:memory=residual"
    return {"0/1 Adam, int4 warm-up": Scheme(options, ONE_BIT, warmup, "int4:memory=residual", every=2)}


DECAY = ",weight_decay=0.01"
ADAM, ADAMW = "--optimizer adam", f"--optimizer adam:decoupled=yes{DECAY}"
OUTER = f"{ADAMW} --lr 0.008 --outer diloco --every {EVERY}"
DILOCO = {"DiLoCo": Scheme(f"{OUTER} --outer-lr 1 --outer-momentum 0.3", "dense", every=EVERY),
          "DiLoCo in int8, warm-up": Scheme(f"{OUTER} --outer-warmup 0.75 --outer-warmup-scheme int8 --scheme int8",
                                            "int8", 368, "int8", EVERY)}  # fmt: skip
MODELS = {
    "cnn": Model(
        "vision", "fashion-mnist", "--network cnn --batch 64 --epochs 2 --eval-every 39", "metric", 0.85, 215_370,
        0.043, schemes("", 0.05, **scalecom("", 0.05, 0.2, 47), **{
            "top-k 1 %": Scheme("--lr 0.05 --scheme topk:density=0.01", "topk:density=0.01")}),
        "--data synthetic:train=200,test=50 --epochs 0.1 --batch 4"),
    "ratings": Model(
        "recommend", "synthetic:users=600,items=400,each=20,seed=1", "--batch 64 --epochs 6 --eval-every 22", "metric",
        0.75, 24_681, 0.23, schemes(ADAM, 0.005, **scalecom(ADAM, 0.005, 0.6, 26, ",layers=per-tensor"), **{
            "top-k 3.5 %, Adam in the memory": Scheme(f"--optimizer sgd --lr 0.0075 --scheme {UPDATE}", UPDATE)},
            **one_bit(0.005, 40), **zero_one(0.005, 40, 56)),
        "--data synthetic:users=40,items=150,each=12,seed=1 --epochs 0.2 --batch 8"),
    "transformer": Model(
        "language", "tinyshakespeare/input.txt", "--network transformer --width 64 --layers 2 --bptt 64 --batch 8 "
        "--schedule cosine:end=0.1 --warmup 0.1 --clip 1 --epochs 3 --eval-every 98 --eval-tokens 50000",
        "test_loss", 1.9, 104_321, 0.02, schemes(ADAMW, 0.008, **scalecom(ADAMW, 0.008, 0.3, 147), **{
            "top-k 3.5 %, Adam in the memory": Scheme(f"--optimizer sgd --lr 0.004 --scheme {UPDATE}", UPDATE)},
            **one_bit(0.008, 220, DECAY), **zero_one(0.008, 300, 292, DECAY), **DILOCO),
        "--data synthetic:tokens=3000,symbols=12,seed=1 --width 8 --bptt 8 --tokens 2000 --eval-tokens 200 "
        "--epochs 0.1"),
}  # fmt: skip


def command(model, seed, options, quick):
    """Words of a training command."""
    source = model.data if model.data.startswith("synthetic") else DATA / model.data
    if not quick and not model.data.startswith("synthetic") and not Path(source).exists():
        raise Unavailable(f"no {source}: set MPICOMP_DATA to the folder of the data sets")
    return [model.app, "--data", str(source), *model.options.split(), "--seed", str(seed), *options.split(), "--json",
            *(model.quick.split() if quick else ())]  # fmt: skip


def run(ranks, words):
    """The report of a training, or the words of its failure."""
    line = [VENV / "bin/mpirun", "-n", ranks, VENV / "bin/mpicomp", "train", *words]
    bounded = ["timeout", "--kill-after=10", "3600", *map(str, line)]
    done = subprocess.run(bounded, env={**os.environ, **ALONE}, capture_output=True, text=True)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def curves(name):
    def figure(quick):
        model, rows = MODELS[name], []
        for seed in seeds[: 1 if quick else None]:
            for label, scheme in model.schemes.items():
                words = command(model, seed, f"{scheme.options} --workers {WORKERS}", quick)
                report = run(WORKERS if scheme.every > 1 else 1, words)
                rows.append(curve_row(model, label, scheme, seed, report))
                print(rows[-1], file=sys.stderr, flush=True)
        return f"{WORKERS} workers, {model.parameters} parameters, {model.options}", rows, {}

    figure.__doc__ = f"Trainings of {name}: value at the end, bytes per worker, steps to {MODELS[name].target}."
    return figure


def curve_row(model, label, scheme, seed, report):
    """The end of a training, and the first evaluation that has the target; a training that diverged has neither."""
    row = {"scheme": label, "timed": scheme.timed, "seed": seed, "first": scheme.first,
           "first steps": scheme.first_steps, "every": scheme.every, "target": model.target}  # fmt: skip
    if isinstance(report, str):
        if "not finite" not in report:
            sys.exit(f"training with {scheme.options} failed\n{report}")
        return {**row, "steps": "", "value": "diverges", "MB per worker": "", "steps to it": ""}
    sign, points = (-1 if model.value == "test_loss" else 1), report["series"]
    reached = [point["step"] for point in points if sign * point[model.value] >= sign * model.target]
    return {**row, "steps": report["steps"], "value": f"{points[-1][model.value]:.4f}",
            "MB per worker": f"{points[-1]['bits'] / 8e6:.3g}", "steps to it": min(reached, default="")}  # fmt: skip


def steps(quick):
    """An exchange over four hosts, and computing by one worker on one core, in ms per step."""
    rows = []
    computing = {name: computing_time(model, quick) for name, model in MODELS.items()}
    with Hosts(WORKERS) as hosts:
        for rate in RATES:
            hosts.set_rate(rate)
            for name, model in MODELS.items():
                timed = list(dict.fromkeys(text for scheme in model.schemes.values()
                                           for text in (scheme.first, scheme.timed)))  # fmt: skip
                task = {"n": model.parameters, "algorithms": [], "schemes": timed,
                        "iterations": {"dense": 1, "compressed": 2 if quick else 40}}  # fmt: skip
                seconds = on_hosts(hosts, "methods", task)["seconds"]
                rows += [{"model": name, "rate": rate, "scheme": text, "exchange ms": ms(min(seconds[text])),
                          "computing ms": ms(computing[name])} for text in timed]  # fmt: skip
    return f"{WORKERS} hosts, one rank each, float32; the shortest of 40 alternating exchanges", rows, {}


def computing_time(model, quick):
    """Seconds of a step of one worker without any exchange: the least of three short trainings."""
    options = f"{model.schemes['dense'].options} --epochs {model.steps_of_a_worker}"
    reports = [run(1, command(model, 0, f"{options} --workers 1", quick)) for _ in range(1 if quick else 3)]
    for report in reports:
        if isinstance(report, str):
            sys.exit(report)
    return min(report["seconds"]["steps"] / report["steps"] for report in reports)


FIGURES = {**{name: curves(name) for name in MODELS}, "steps": steps}
seeds = [int(one) for one in sys.argv[sys.argv.index("--seeds") + 1].split(",")] if "--seeds" in sys.argv else [0, 1]


if __name__ == "__main__":
    given = [word for i, word in enumerate(sys.argv[1:], 1) if word != "--seeds" and sys.argv[i - 1] != "--seeds"]
    sys.exit(main(FIGURES, __doc__, prefix="training-", arguments=given))
