"""Predictions of `mpicomp simulate` and `mpicomp advise` beside what is measured on emulated hosts and on one node.

    python tests/benchmarks/bench_simulate.py FIGURE... [--quick] [--output FILE]       all: every figure
    python tests/benchmarks/bench_simulate.py --recorded FILE [--output FILE]      predict again, beside recorded times

Each figure first lets the same ranks describe the machine (`mpicomp tune --machine`, or `mpicomp advise` itself), then
predicts, then measures. The figures over hosts need root and iproute2 and are skipped with the reason elsewhere.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent))
from figures import ALONE, MEASURE, MIB, VENV, Hosts, answer, main, ms, on_node, save, table
from hosts import BURST

from mpicomp.simulate import machine as machines
from mpicomp.simulate import predict, program_of
from mpicomp.simulate.models import named

CLOSE = 0.15  # how far a prediction may be off
ROUNDS = 3  # of measuring
LENGTHS = {"1 MiB": MIB // 4, "100 MiB": 100 * MIB // 4}
WHATS = {"ring": "ring", "halving-doubling": "halving_doubling", "leader": "scalecom:chunk=112,beta=0.1",
         "gather": "topk-global:density=0.01"}  # fmt: skip
PASSES = ["dense", "half", "int8", "int8:memory=residual", "qsgd", "onebit", "scalecom:chunk=112,beta=0.1",
          "topk-global:density=0.01", "dgc:density=0.001"]  # fmt: skip
TUNE = ["python", "-m", "mpicomp.cli", "tune", "--quiet", "--force", "--machine"]


def verdict(predicted, measured):
    """A prediction's error against the goal."""
    off = predicted / measured - 1
    return f"{off:+.0%} ({'met' if abs(off) <= CLOSE else 'MISSED'})"


def described(run):
    """The machine that `run(command)` describes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machine.json"
        done = run([*TUNE, path])
        if done.returncode:
            sys.exit(f"mpicomp tune failed\n{done.stdout}{done.stderr}")
        return machines.load(json.loads(path.read_text()), "the measured machine")


def predicted(machine, what, model, size=4):
    """Seconds of an exchange in a row of exchanges, during which a shaper's bucket is refilled at the link's rate."""
    exchange = predict(program := program_of(what, named(model), machine.place(size)), machine, 0.0)
    refilled = program.bytes_sent.mean() / machine.between.bandwidth if machine.between.burst else 0.0
    return max(exchange.exchange, refilled)


def compared(machine_of, taken):
    """Rows of measured seconds by length and name, beside the median of the predictions for several machines."""
    rows = []
    for length, seconds in taken.items():
        for name, what in WHATS.items():
            guess = median(predicted(machine, what, str(LENGTHS[length])) for machine in machine_of)
            rows.append({"": name, "length": length, "predicted ms": ms(guess), "measured ms": ms(seconds[what]),
                         "off, at most 15 %": verdict(guess, seconds[what])})
    return rows


def calibration(describe, measure, quick):
    """Rows of every algorithm and length; `measure(task, settings)` runs a task of measure.py.

    The machine is described before, between and after rounds of measuring. Medians of predictions and of rounds count:
    a shared machine's memory is faster in some minutes than in others.
    """
    lengths = dict(list(LENGTHS.items())[: 1 if quick else None])
    described, rounds = [describe()], []
    for _ in range(1 if quick else ROUNDS):
        rounds.append({length: measure("steps", {"n": n, "names": list(WHATS.values())})
                       for length, n in lengths.items()})
        described.append(describe())
    taken = {length: {what: median(one[length][what] for one in rounds) for what in WHATS.values()}
             for length in lengths}
    return compared(described, taken), {"machines": [machines.dump(machine) for machine in described], **taken}


def hosts_at(rate):
    def figure(quick):
        with Hosts(4, rate) as hosts:
            def describe():
                machine = described(lambda command: hosts.run(1, command, time_limit=200))
                # What short steps leave in the shaper's bucket is there again for the next one; `tune` does not see it.
                return replace(machine, between=replace(machine.between, burst=float(BURST)))

            def measure(task, settings):
                return answer(hosts.run(1, ["python", MEASURE, task, json.dumps(settings)], time_limit=600))

            rows, raw = calibration(describe, measure, quick)
        return f"4 hosts, {rate}; machine by mpicomp tune --machine on the same hosts", rows, raw

    figure.__doc__ = f"Ring, halving-doubling, leader and gather over four hosts of {rate} against their predictions."
    return figure


def simulate_node(quick):
    """The same on four ranks of one node, in shared memory."""
    describe = partial(described, launch)
    rows, raw = calibration(describe, lambda task, settings: on_node(4, task, settings, 600), quick)
    return "4 ranks, one node", rows, raw


def simulate_alone(quick):
    """Passes over memory in the model: one rank's own work in a step against its processor time."""
    n, task = MIB // 4 if quick else 100 * MIB // 4, "own_work"
    raw = on_node(1, task, {"n": n, "names": PASSES, "calls": 1 if quick else 9}, 600, ("-x", "MPICOMP_NUM_THREADS=1"))
    rows = rows_alone(raw, n)
    return f"1 rank, 1 thread, {4 * n // MIB} MiB of float32; processor time, the least of 9 calls", rows, raw


def rows_alone(raw, n=LENGTHS["100 MiB"]):
    """Rows of the work of one rank."""
    alone, rows = machines.Machine(machines.Wire(0, 1), machines.Wire(0, 1), 1, raw["kernels"]), []
    for what, seconds in raw["seconds"].items():
        guess = predicted(alone, what, str(n), 1)
        rows.append({"": f"`{what}`", "predicted ms": ms(guess), "measured ms": ms(seconds),
                     "off, at most 15 %": verdict(guess, seconds)})
    return rows


def launch(command):
    """Run a command on four ranks of this machine."""
    full = ["timeout", "--kill-after=10", "300", VENV / "bin/mpirun", "-n", "4", VENV / "bin/python", *command[1:]]
    return subprocess.run(list(map(str, full)), env={**os.environ, **ALONE}, capture_output=True, text=True)


def advise_hosts(quick):
    """Predictions and measurements of `mpicomp advise --check`: hosts of 100 Mbit/s, 1 and 10 Gbit/s, and one node."""
    command = ["python", "-m", "mpicomp.cli", "advise", "--quiet", "--json", "--check", "--compute-time", "0.1",
               "--model", "1M" if quick else "resnet18"]
    raw = {}
    with Hosts(4) as hosts:
        for rate in ("100mbit", "1gbit", "10gbit"):
            hosts.set_rate(rate)
            raw[rate] = document(hosts.run(1, command, time_limit=600))
    raw["shared memory"] = document(launch(command))
    return "4 ranks, 100 ms of computing a step", rows_of_advice(raw), raw


def rows_of_advice(raw, again=False):
    """Rows of the checked steps; with predictions made ``again`` from the recorded machines."""
    rows = []
    for where, one in raw.items():
        machine = machines.load(one["machine"], where)
        for row in one["rows"]:
            if row["measured_exchange"] is not None:
                guess, seconds = row["exchange"], row["measured_exchange"]
                if again and row["what"] != "native":
                    guess = predicted(machine, row["what"], one["model"]["name"])
                rows.append({"": where, "exchange of": row["what"], "predicted ms": ms(guess),
                             "measured ms": ms(seconds), "off, at most 15 %": verdict(guess, seconds),
                             "advice": one["verdict"][:40]})
    return rows


def predict_again(path, output=None):
    """Print the tables of recorded figures with today's predictions, and save them."""
    for name, one in json.loads(Path(path).read_text()).items():
        if not name.startswith(PREFIX):
            continue
        raw = one["raw"]
        if "machines" in raw:
            described = [machines.load(each, name) for each in raw["machines"]]
            rows = compared(described, {length: raw[length] for length in LENGTHS if length in raw})
        else:
            rows = rows_alone(raw) if "kernels" in raw else rows_of_advice(raw, again=True)
        print(f"\n### {name}\n{one['settings']}\n\n{table(rows)}", flush=True)
        if output:
            save(output, name, one["settings"], rows, raw)


def document(done):
    """The JSON document in a job's output."""
    if done.returncode:
        sys.exit(f"mpicomp advise failed\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout[done.stdout.index("{"):])


FIGURES = {
    "100mbit-hosts": hosts_at("100mbit"), "1gbit-hosts": hosts_at("1gbit"), "10gbit-hosts": hosts_at("10gbit"),
    "node": simulate_node, "alone": simulate_alone, "advise-hosts": advise_hosts,
}  # fmt: skip

PREFIX = "simulate-"

if __name__ == "__main__":
    if sys.argv[1:2] == ["--recorded"]:
        sys.exit(predict_again(*(word for word in sys.argv[2:] if word != "--output")))
    sys.exit(main(FIGURES, __doc__, PREFIX))
