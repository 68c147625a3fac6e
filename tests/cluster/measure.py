"""Job of tests/benchmarks/figures.py: `measure.py TASK SETTINGS`, both in JSON; rank 0 prints the answer.

Calls that are compared take turns, each starts behind a barrier, and a call has taken as long as its slowest rank.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
from mpi4py import MPI

import mpicomp
import mpicomp.schemes.averaging
from mpicomp.allreduce import node_shared, ring
from mpicomp.bench import check
from mpicomp.bench.environment import Noise
from mpicomp.bench.kernels import themes
from mpicomp.ops import ops_for
from mpicomp.simulate.steps import kinds

comm = MPI.COMM_WORLD


def timed(call, batch=1):
    """Seconds of one call on the slowest rank; of short calls, the mean of a `batch`."""
    comm.Barrier()
    start = time.perf_counter()
    for _ in range(batch):
        call()
    return comm.allreduce(time.perf_counter() - start, MPI.MAX) / batch


def alternate(calls, iterations, batch=1):
    """Seconds of every call, taking turns; `iterations` says how often each is called."""
    seconds = {name: [] for name in calls}
    for turn in range(max(iterations.values())):
        for name, call in calls.items():
            if turn < iterations[name]:
                seconds[name].append(timed(call, batch))
    return seconds


def everywhere(holds):
    """Return True if ``holds`` is true on all ranks."""
    return comm.allreduce(bool(holds), MPI.LAND)


def dense(n, algorithms, iterations):
    """All-reduce of n float32 by MPI and by each algorithm, checked first; small integers add to the same bits."""
    ours = mpicomp.Comm(comm)
    x = np.random.default_rng(comm.rank).integers(-8, 8, n).astype(np.float32)
    expected, got = np.empty_like(x), np.empty_like(x)
    calls = {"native": lambda: comm.Allreduce(x, expected)}
    calls |= {name: lambda name=name: ours.Allreduce(x, got, algorithm=name) for name in algorithms}
    calls["native"]()
    sent = {}
    for name in algorithms:
        got.fill(np.nan)
        before = ours.traffic.bytes_sent
        calls[name]()
        sent[name] = comm.allreduce(ours.traffic.bytes_sent - before) / comm.size
        assert everywhere(np.array_equal(got, expected)), f"{name} is wrong"
    return {"seconds": alternate(calls, dict.fromkeys(calls, iterations)), "bytes_per_rank": sent}


def sweep(lengths, names, seconds, windows=False, batch=1):
    """All-reduces of each length by MPI, by each algorithm and a copy by all ranks, in turn, about `seconds` a length.

    `windows` adds "window": `auto` on arrays of `Comm.empty`. Results are checked first. So are, by `Comm` itself, the
    arguments of its first 64 calls: those are done before.
    """
    ours = mpicomp.Comm(comm)
    for _ in range(64):
        ours.Allreduce(np.ones(1), np.ones(1))
    shared = (ours.empty(max(lengths)), ours.empty(max(lengths))) if windows else None
    return [sweep_one(ours, n, names, seconds, shared, batch) for n in lengths]


def sweep_one(ours, n, names, seconds, shared, batch):
    """One length of a sweep."""
    x = np.random.default_rng(comm.rank).integers(-8, 8, n).astype(np.float32)
    expected, got = np.zeros_like(x), np.zeros_like(x)
    calls = {"native": lambda: comm.Allreduce(x, expected)}
    calls |= {name: lambda name=name: ours.Allreduce(x, got, algorithm=name) for name in names}
    if shared:
        lain, lies = (array[:n] for array in shared)
        lain[:] = x
        calls["window"] = lambda: ours.Allreduce(lain, lies)
    calls["native"]()
    for name in [name for name in calls if name != "native"]:
        result = lies if name == "window" else got
        result[:] = np.nan
        comm.Barrier()  # others write to arrays in shared memory
        calls[name]()
        assert everywhere(np.array_equal(result, expected)), f"{name} is wrong"
    calls["copy"] = lambda: np.copyto(got, x)
    once = sum(timed(call, batch) for call in calls.values())
    rounds = min(300, max(3, round(seconds / batch / once)))
    noise = Noise()
    taken = alternate(calls, dict.fromkeys(calls, rounds), batch)
    share = noise.share(comm)
    return {"n": n, "rounds": rounds, "others": share, "seconds": {name: median(each) for name, each in taken.items()}}


def check_step(sparse, gradient):
    """Stop unless a first step (memory still zero) gave the mean of the gradients at the same places everywhere."""
    indices = comm.bcast(sparse.indices)
    mean = np.empty_like(sparse.values)
    comm.Allreduce(gradient[sparse.indices], mean)
    right = np.array_equal(indices, sparse.indices) and np.allclose(sparse.values, mean / comm.size, atol=1e-6)
    assert everywhere(right), "the sparse mean is wrong"


def phases(records):
    """Median seconds of each phase, of the rank that led and of the others: `records` holds all ranks of all steps."""
    flat = [stats for step in records for stats in step]
    roles = {"leader": [s for s in flat if s["leads"]], "others": [s for s in flat if not s["leads"]]}
    names = {name for stats in flat for name in stats["seconds"]}
    return {
        role: {name: median(s["seconds"].get(name, 0.0) for s in stats) for name in sorted(names)}
        for role, stats in roles.items()
        if stats
    }


def scheme(n, scheme, iterations):
    """Steps that return the sparse mean against MPI's all-reduce and a copy of the vector by all ranks at once."""
    reducer = mpicomp.Reducer(mpicomp.Comm(comm), scheme)
    x = np.random.default_rng(comm.rank).standard_normal(n, np.float32)
    out, records = np.zeros_like(x), []

    def step():
        reducer.reduce_sparse(x)
        stats = reducer.stats
        records.append({"leads": stats.leader == comm.rank, "seconds": stats.seconds, "sent": stats.bytes_sent})

    check_step(reducer.reduce_sparse(x), x)
    comm.Allreduce(x[:1000].copy(), np.empty(1000, np.float32))  # connects; the vector itself may take half a minute
    step()
    records.clear()
    calls = {"native": lambda: comm.Allreduce(x, out), "step": step, "copy": lambda: np.copyto(out, x)}
    seconds = alternate(calls, iterations)
    gathered = comm.allgather(records)
    sent = sum(stats["sent"] for rank in gathered for stats in rank) / sum(map(len, gathered))
    return {"seconds": seconds, "phases": phases(gathered), "bytes_per_rank": sent}


def methods(n, algorithms, schemes, iterations):
    """A vector of n float32 averaged by MPI, by each algorithm and by each scheme, taking turns.

    `iterations` holds how often dense ("native" and algorithms) and compressed ones are called. Algorithms are checked
    on small integers that add to the same bits; compressed steps by the tests, and timed on a normal distribution,
    since equal magnitudes are not what selectors meet.
    """
    ours = mpicomp.Comm(comm)
    gradient = np.random.default_rng(comm.rank).standard_normal(n, np.float32)
    x = np.random.default_rng(comm.rank).integers(-8, 8, n).astype(np.float32)
    out, sent = np.empty_like(x), {}
    calls = {"native": lambda: comm.Allreduce(x, out)}
    calls |= {name: lambda name=name: ours.Allreduce(x, out, algorithm=name) for name in algorithms}
    reducers = {text: mpicomp.Reducer(ours, text) for text in schemes}
    calls |= {text: lambda one=one: one.reduce_sparse(gradient) for text, one in reducers.items()}
    short = np.empty(1000, np.float32)
    comm.Allreduce(x[:1000].copy(), short)  # connects; the vector itself may take a minute
    for name in [name for name in calls if name != "native"]:
        before = ours.traffic.bytes_sent
        calls[name]()
        sent[name] = comm.allreduce(ours.traffic.bytes_sent - before) / comm.size
        if name in algorithms:
            assert everywhere(np.array_equal(out[:1000], short)), f"{name} is wrong"
    turns = {name: iterations["compressed" if name in reducers else "dense"] for name in calls}
    return {"seconds": alternate(calls, turns), "bytes_per_rank": sent}


def changing(n, auto, fixed, steps, turns, folder, rates):
    """Steps of a scheme that chooses, at one rate of the links after the other, and then in turn with fixed schemes.

    Who started the job changes the rate when the file `asks-NUMBER` is in `folder`, and then makes `set-NUMBER`.
    `turns` are the rounds at each rate.
    """
    ours, folder = mpicomp.Comm(comm), Path(folder)
    x = np.random.default_rng(comm.rank).standard_normal(n, np.float32)
    out, found = np.empty_like(x), {}
    reducers = {text: mpicomp.Reducer(ours, text) for text in (auto, *fixed)}
    calls = {text: lambda one=one: one.reduce(x, out=out) for text, one in reducers.items()}
    for number, rate in enumerate(rates):
        if comm.rank == 0:
            (folder / f"asks-{number}").touch()
        while not (folder / f"set-{number}").exists():
            time.sleep(0.05)
        comm.Barrier()
        ran = [(timed(calls[auto]), reducers[auto].stats.chosen) for _ in range(steps)]
        taken = alternate(calls, dict.fromkeys(calls, 1 + turns[number]))
        found[rate] = {
            "ran": ran, "chosen": reducers[auto].stats.chosen, "reason": reducers[auto].stats.reason,
            "seconds": {text: each[1:] for text, each in taken.items()},  # without a first step's fresh memory
        }  # fmt: skip
    return found


def traffic(n, scheme, steps):
    """Bytes sent per rank in `steps` steps of a reducer, by the transport's own count."""
    ours = mpicomp.Comm(comm)
    reducer = mpicomp.Reducer(ours, scheme)
    x = np.random.default_rng(comm.rank).standard_normal(n, np.float32)
    before = ours.traffic.bytes_sent
    for _ in range(steps):
        reducer.reduce_sparse(x)
    return {"bytes_per_rank": comm.allreduce(ours.traffic.bytes_sent - before) / comm.size}


def steps(n, names):
    """Median seconds of all-reduces by each algorithm or steps of each scheme, as `mpicomp advise --check` has them."""
    return check.steps(mpicomp.Comm(comm), names, [("vector", (n,), 0.0)], kinds)


def own_work(n, names, calls):
    """Processor seconds of a step of each scheme, and of an element of each kernel, on this rank alone: the least."""
    x, ours = np.random.default_rng(0).standard_normal(n, np.float32), mpicomp.Comm(comm)
    reducers = {name: mpicomp.Reducer(ours, name) for name in names}
    rates = {name: busy(call, calls) / elements for theme in themes(n) for name, call, elements in theme()}
    return {"kernels": rates, "seconds": {name: busy(lambda one=one: one.reduce_sparse(x), calls)
                                          for name, one in reducers.items()}}


def busy(call, calls):
    """The least processor time of a call."""
    least = np.inf
    for _ in range(calls):
        start = time.thread_time()
        call()
        least = min(least, time.thread_time() - start)
    return least


def buckets(n, sizes, seconds):
    """Steps of scheme `half` with buckets of each size, in one piece ("whole"), and the all-reduce alone, in turn."""
    ours = mpicomp.Comm(comm)
    x = np.random.default_rng(comm.rank).integers(-8, 8, n).astype(np.float32)
    out, total, reducers = np.empty_like(x), np.empty_like(x), {}
    ours.Allreduce(x, total)

    def step(nbytes):
        mpicomp.schemes.averaging.BUCKET_BYTES = nbytes
        reducers[nbytes].reduce(x, out=out)

    calls = {"all-reduce": lambda: ours.Allreduce(x, total)}
    for name, nbytes in {"whole": 1 << 40, **sizes}.items():
        reducers[nbytes] = mpicomp.Reducer(ours, "half")
        calls[name] = lambda nbytes=nbytes: step(nbytes)
        calls[name]()
        assert everywhere(np.array_equal(out, total * np.float32(1 / comm.size))), f"{name} is wrong"
    once = sum(timed(call) for call in calls.values())
    noise = Noise()
    taken = alternate(calls, dict.fromkeys(calls, min(200, max(3, round(seconds / once)))))
    share = noise.share(comm)
    return {"n": n, "others": share, "seconds": {name: median(each) for name, each in taken.items()}}


def plain_steps(n, seconds):
    """Dense steps out of place and in place, beside the all-reduces and the look for NaN in them, in turn."""
    ours = mpicomp.Comm(comm)
    x = np.random.default_rng(comm.rank).integers(-8, 8, n).astype(np.float32)
    out, total, own, reducer = np.empty_like(x), np.empty_like(x), x.copy(), mpicomp.Reducer(ours, "dense")
    ours.Allreduce(x, total)
    reducer.reduce(x, out=out)
    reducer.reduce(own, out=own)
    mean = total * np.float32(1 / comm.size)
    assert everywhere(np.array_equal(out, mean) and np.array_equal(own, mean))
    ops = ops_for(x)
    calls = {
        "all-reduce": lambda: ours.Allreduce(x, total), "step": lambda: reducer.reduce(x, out=out),
        "all-reduce in place": lambda: ours.allreduce_in_place(own, factor=1 / comm.size),
        "step in place": lambda: reducer.reduce(own, out=own), "look for NaN": lambda: ops.count_nonfinite(x),
    }  # fmt: skip
    once = sum(timed(call) for call in calls.values())
    noise = Noise()
    taken = alternate(calls, dict.fromkeys(calls, min(200, max(3, round(seconds / once)))))
    share = noise.share(comm)
    return {"n": n, "others": share, "seconds": {name: median(each) for name, each in taken.items()}}


def segments(n, settings, seconds):
    """`auto` with each of some lengths and numbers of segments in flight, and parts of the vector, in turn.

    `settings` holds by name what to set: {"ring.WINDOW": 8, "node_shared.PART_BYTES": ...}.
    """
    ours, modules = mpicomp.Comm(comm), {"ring": ring, "node_shared": node_shared}
    x = np.random.default_rng(comm.rank).integers(-8, 8, n).astype(np.float32)
    expected, got, calls = np.empty_like(x), np.empty_like(x), {}
    comm.Allreduce(x, expected)

    def call(values):
        for name, value in values.items():
            module, constant = name.split(".")
            setattr(modules[module], constant, value)
        ours.Allreduce(x, got)

    for name, values in settings.items():
        calls[name] = lambda values=values: call(values)
        calls[name]()
        assert everywhere(np.array_equal(got, expected)), f"{name} is wrong"
    once = sum(timed(call) for call in calls.values())
    noise = Noise()
    taken = alternate(calls, dict.fromkeys(calls, max(3, round(seconds / once))))
    share = noise.share(comm)
    return {"n": n, "others": share, "seconds": {name: median(each) for name, each in taken.items()}}


TASKS = {one.__name__: one for one in (steps, segments, buckets, dense, plain_steps, sweep, scheme, methods, changing,
                                            own_work, traffic)}

if __name__ == "__main__":
    answer = TASKS[sys.argv[1]](**json.loads(sys.argv[2]))
    if comm.rank == 0:
        print(json.dumps(answer), flush=True)
