"""The kept figures of the dense all-reduce, each beside the MPI libraries' own, by alternating calls in one run.

    python tests/benchmarks/bench_allreduce.py FIGURE... [--quick] [--output FILE]     all: every figure

node     2, 4 and 8 ranks of one node, 256 KiB to 256 MiB, both MPIs: private arrays and those of ``Comm.empty``
small    4 B to 16 KiB, 2 and 4 ranks: what ``Comm.Allreduce`` costs over mpi4py's own call
hosts    four hosts of 1 Gbit/s (needs root and iproute2), 1 and 2 ranks a host, 4 to 256 MiB
schedules over 2, 3 and 4 hosts of 1 and 10 Gbit/s, 128 KiB to 48 MiB: what `auto` may take there
segments 64 MiB over the hosts, with segments of other lengths and numbers, and parts of other lengths, in turn
step     a step of a dense Reducer, out of place and in place, beside the all-reduces in it; step-hosts: over the hosts
buckets  steps of scheme `half` in buckets of 4 to 32 MiB that are in flight at once, beside one in one piece;
         buckets-hosts: over the hosts

Times are medians of calls that take turns, each as slow as its slowest rank. "Copy" is every rank copying the vector
at once: an all-reduce must read and write main memory as much, so it is the limit that memory sets. "Others' CPU" is
the share of the machine that processes other than the job's used meanwhile: above 5 % measure again.
"""

import json
import os
import subprocess
import sys
from math import exp, log
from pathlib import Path
from statistics import mean

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cluster")]
from figures import ALONE, BITS, MEASURE, MIB, answer, main, verdict  # noqa: E402
from hosts import Hosts  # noqa: E402
from limits import allreduce_bytes  # noqa: E402

MPIS = {"Open MPI": ("openmpi", "mpirun"), "MPICH": ("mpich", "mpiexec")}
TCP = 1448 / 1514  # payload in a full frame, which the shaper counts with its Ethernet, IP and TCP headers
SLOWEST = 1 / 1.1  # `auto` may take 10 % more than native


def on_node(mpi, ranks, settings, limit=500, task="sweep"):
    """Run a task of measure.py on ranks of this machine under one MPI."""
    venv, launcher = MPIS[mpi]
    binaries = HERE.parents[1] / ".venv" / venv / "bin"
    command = ["timeout", "--kill-after=10", limit, binaries / launcher, "-n", ranks, binaries / "python", MEASURE]
    command += [task, json.dumps(settings)]
    environment = {**os.environ, **ALONE}
    return answer(subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True))


def geometric_mean(values):
    return exp(mean(map(log, values)))


def node(quick):
    """One node: geometric mean of the better MPI's time over ours."""
    lengths = [int(mib * MIB) // 4 for mib in ((1,) if quick else (0.25, 1, 4, 16, 64, 256))]
    settings = {"lengths": lengths, "names": ["auto"], "seconds": 0 if quick else 6, "windows": True}
    rows, raw = [], {}
    for ranks in (2,) if quick else (2, 4, 8):
        raw[ranks] = {mpi: on_node(mpi, ranks, settings) for mpi in MPIS}
        for mpi, measured in raw[ranks].items():
            rows += [node_row(ranks, mpi, i, one, raw[ranks]) for i, one in enumerate(measured)]
            for name, target in (("auto", 1.5), ("window", 2.0)):
                factors = [
                    better_native(raw[ranks], i) / one["seconds"][name] for i, one in enumerate(measured)
                ]
                rows.append({"ranks": ranks, "under": mpi, "MiB": f"geometric mean, {name}",
                             "better native / it": verdict(geometric_mean(factors), target)})
    return "one node, float32, separate buffers", rows, raw


def better_native(by_mpi, i):
    """The faster library's own call at one length."""
    return min(measured[i]["seconds"]["native"] for measured in by_mpi.values())


def node_row(ranks, mpi, i, one, by_mpi):
    seconds = one["seconds"]
    row = {"ranks": ranks, "under": mpi, "MiB": 4 * one["n"] / MIB, "rounds": one["rounds"]}
    row |= {f"{name} ms": f"{1e3 * value:.2f}" for name, value in seconds.items()}
    row["native / auto"] = verdict(seconds["native"] / seconds["auto"], SLOWEST)
    row["better native / it"] = f"{better_native(by_mpi, i) / seconds['auto']:.2f}"
    row["window"] = f"{better_native(by_mpi, i) / seconds['window']:.2f}"
    row["others' CPU"] = f"{one['others']:.0%}"
    row["of the copy's rate"] = f"{seconds['copy'] / seconds['auto']:.0%}, {seconds['copy'] / seconds['window']:.0%}"
    return row


def small(quick):
    """Small messages: what our call adds to mpi4py's own."""
    lengths = [1, 16, 256, 1024, 2048, 4096]
    settings = {"lengths": lengths, "names": ["auto"], "seconds": 0 if quick else 2.0}
    rows, raw = [], {}
    for ranks in (2,) if quick else (2, 4):
        for mpi in MPIS:
            raw[f"{ranks} {mpi}"] = measured = on_node(mpi, ranks, {**settings, "batch": 50})
            for one in measured:
                native, auto = (1e6 * one["seconds"][name] for name in ("native", "auto"))
                row = {"ranks": ranks, "under": mpi, "bytes": 4 * one["n"], "others' CPU": f"{one['others']:.0%}"}
                row["native us"] = f"{native:.2f}"
                added = f"{auto - native:+.2f}"
                met = "" if 4 * one["n"] > 8192 else f" ({'met' if auto - native <= 3 else 'MISSED'})"
                rows.append({**row, "auto us": f"{auto:.2f}", "added us": added + met})
    return "one node, float32, a barrier before every 50 calls", rows, raw


def hosts(quick):
    """Four hosts of 1 Gbit/s: share of the wire's limit, and native's time over ours."""
    lengths = [mib * MIB // 4 for mib in ((4,) if quick else (4, 16, 64, 256))]
    rows, raw = [], {}
    with Hosts(4, "1gbit") as cluster:
        for ranks_a_host in (1, 2):
            settings = {"lengths": lengths, "names": ["ring", "auto"], "seconds": 0 if quick else 30}
            command = ["python", MEASURE, "sweep", json.dumps(settings)]
            raw[ranks_a_host] = answer(cluster.run(ranks_a_host, command, time_limit=500))
            rows += [hosts_row(ranks_a_host, one) for one in raw[ranks_a_host]]
    return "4 hosts, 1 Gbit/s, float32; what a host must send at least sets the wire's limit", rows, raw


def hosts_row(ranks_a_host, one):
    limit = 8 * allreduce_bytes(one["n"], 4) / BITS["1gbit"]
    seconds, mib = one["seconds"], 4 * one["n"] / MIB
    row = {"ranks a host": ranks_a_host, "MiB": mib, "rounds": one["rounds"], "wire ms": f"{1e3 * limit:.0f}"}
    row |= {f"{name} ms": f"{1e3 * seconds[name]:.0f}" for name in ("native", "ring", "auto")}
    share = limit / seconds["auto"]
    row["of the limit"] = verdict(share, 0.9) if mib == 64 else f"{share:.2f}"
    return {**row, "native / auto": verdict(seconds["native"] / seconds["auto"], 1.3)}


def schedules(quick):
    """Every schedule that `auto` may take between hosts, and the time of `auto` over that of the fastest."""
    lengths = [kib << 8 for kib in ((1024,) if quick else (128, 1024, 12288, 49152))]
    settings = {"lengths": lengths, "names": ["ring", "direct", "halving_doubling", "auto"]}
    rows, raw = [], {}
    for count in (2,) if quick else (2, 3, 4):
        for rate, seconds in (("10gbit", 6), ("1gbit", 12))[: 1 if quick else None]:
            with Hosts(count, rate) as cluster:
                command = ["python", MEASURE, "sweep", json.dumps({**settings, "seconds": 0 if quick else seconds})]
                raw[f"{count} {rate}"] = measured = answer(cluster.run(1, command, time_limit=500))
            for one in measured:
                taken = {name: one["seconds"][name] for name in ("native", *settings["names"])}
                rows.append({"hosts": count, "rate": rate, "KiB": one["n"] >> 8,
                             **{f"{name} ms": f"{1e3 * value:.2f}" for name, value in taken.items()},
                             "auto / fastest": f"{taken['auto'] / min(taken.values()):.2f}"})  # fmt: skip
    return "one rank a host, float32", rows, raw


def step(quick):
    """A dense step against the all-reduce in it, on one node."""
    raw = {f"{ranks} ranks, {mpi}, {settings['n'] * 4 // MIB} MiB": on_node(mpi, ranks, settings, task="plain_steps")
           for settings in step_settings(quick) for ranks in ((2,) if quick else (2, 4)) for mpi in MPIS}  # fmt: skip
    return STEP_TEXT, where_rows(raw), raw


def step_hosts(quick):
    """A dense step against the all-reduce in it, over four hosts."""
    raw = {}
    for settings in step_settings(quick):
        for rate in ("1gbit", "10gbit"):
            with Hosts(4, rate) as cluster:
                command = ["python", MEASURE, "plain_steps", json.dumps(settings)]
                name = f"4 hosts of {rate}, {settings['n'] * 4 // MIB} MiB"
                raw[name] = answer(cluster.run(1, command, time_limit=500))
    return STEP_TEXT, where_rows(raw), raw


STEP_TEXT = 'float32, `Reducer(comm, "dense").reduce(x, out=out)` and `reduce(x, out=x)`'


def step_settings(quick):
    return [{"n": mib * MIB // 4, "seconds": 0 if quick else 10} for mib in ((1,) if quick else (1, 64))]


def where_rows(raw):
    """A row per place of a measurement: the processor's other users, and milliseconds by name."""
    return [{"where": where, "others' CPU": f"{one['others']:.0%}",
             **{f"{name} ms": f"{1e3 * value:.2f}" for name, value in one["seconds"].items()}}
            for where, one in raw.items()]  # fmt: skip


def buckets(quick):
    """A step in buckets against one in one piece, and against the all-reduce of as many float32, on one node."""
    settings = bucket_settings(quick, 20)
    raw = {f"{ranks} ranks, {mpi}": on_node(mpi, ranks, settings, task="buckets")
           for ranks in ((2,) if quick else (2, 4)) for mpi in MPIS}  # fmt: skip
    return BUCKETS_TEXT, bucket_rows(raw, settings), raw


def buckets_hosts(quick):
    """A step in buckets against one in one piece, and against the all-reduce of as many float32, over four hosts."""
    settings, raw = bucket_settings(quick, 60), {}
    with Hosts(4, "1gbit") as cluster:
        for ranks in (1, 2):
            command = ["python", MEASURE, "buckets", json.dumps(settings)]
            raw[f"4 hosts, {ranks} a host"] = answer(cluster.run(ranks, command, time_limit=500))
    return BUCKETS_TEXT, bucket_rows(raw, settings), raw


BUCKETS_TEXT = 'float32, 64 MiB (--quick: 4), `Reducer(comm, "half").reduce(x, out=out)`'


def bucket_settings(quick, seconds):
    sizes = {f"{mib} MiB": mib * MIB for mib in ((1,) if quick else (4, 8, 16, 32))}
    return {"n": (4 if quick else 64) * MIB // 4, "sizes": sizes, "seconds": 0 if quick else seconds}


def bucket_rows(raw, settings):
    """The rows of `where_rows`, and how many times faster each size of bucket is than one piece."""
    faster = [{f"whole / {name}": f"{one['seconds']['whole'] / one['seconds'][name]:.2f}" for name in settings["sizes"]}
              for one in raw.values()]  # fmt: skip
    return [row | more for row, more in zip(where_rows(raw), faster, strict=True)]


def segments(quick):
    """Cost of the ring's segments and of the parts of `node_shared` over hosts."""
    n, rows, raw = (4 if quick else 64) * MIB // 4, [], {}
    limit = 8 * allreduce_bytes(n, 4) / BITS["1gbit"]
    with Hosts(4, "1gbit") as cluster:
        for ranks in (1, 2):
            pairs = [(2, 4), (1, 8), (2, 8), (1, 16), (4, 4)][: 2 if quick else None]
            parts = (8,) if ranks == 1 else (8, 16, 64)
            settings = {
                f"{mib} MiB x {window}, parts of {part} MiB": {
                    "ring.SEGMENT_BYTES": mib * MIB, "ring.WINDOW": window, "node_shared.PART_BYTES": part * MIB,
                }
                for mib, window in pairs for part in parts
            }  # fmt: skip
            asked = {"n": n, "settings": settings, "seconds": 0 if quick else 90}
            command = ["python", MEASURE, "segments", json.dumps(asked)]
            raw[ranks] = answer(cluster.run(ranks, command, time_limit=500))
            rows += [
                {"ranks a host": ranks, "segments": name, "ms": f"{1e3 * seconds:.0f}",
                 "of the limit": f"{limit / seconds:.3f}", "of what TCP can carry": f"{limit / TCP / seconds:.3f}",
                 "others' CPU": f"{raw[ranks]['others']:.0%}"}
                for name, seconds in raw[ranks]["seconds"].items()
            ]  # fmt: skip
    return f"4 hosts, 1 Gbit/s, {4 * n // MIB} MiB float32", rows, raw


FIGURES = {"node": node, "small": small, "hosts": hosts, "schedules": schedules, "step": step, "step-hosts": step_hosts,
           "buckets": buckets, "buckets-hosts": buckets_hosts, "segments": segments}  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(FIGURES, __doc__, prefix="allreduce-"))
