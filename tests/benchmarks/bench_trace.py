"""Cost of recording: ns per event, and its share of a training step of 1M elements.

    python tests/benchmarks/bench_trace.py [--json] [--quick]

An event is timed in a loop that keeps the flush thread busy, so the price of packing, checksums and writing is in
it. The step is a real one (ScaleCom, one rank, the floor of what a step can take), with a recorder or without at
random.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from time import perf_counter_ns

import numpy as np

EVENTS, ROUNDS, STEPS = (2000, 1, 30) if "--quick" in sys.argv else (200_000, 7, 3000)
N = 1_000_000


def event_cost(recorder) -> dict:
    """Nanoseconds for an event with every argument, and for the shortest call; the best of some rounds."""

    def full():
        for step in range(EVENTS):
            recorder.event(
                "exchange", 1, step=step, algo="ring", scheme="scalecom:chunk=112", dtype="float32", op="sum",
                nbytes_dense=4_000_000, nbytes_sent=40_000, nbytes_recv=40_000, nelem=1_000_000,
            )  # fmt: skip

    def short():
        for _ in range(EVENTS):
            recorder.event("compute", 1)

    return {"event_full_ns": best(full), "event_short_ns": best(short)}


def best(work) -> float:
    times = []
    for _ in range(ROUNDS):
        start = perf_counter_ns()
        work()
        times.append((perf_counter_ns() - start) / EVENTS)
    return min(times)


def step_cost(comm, recorder) -> dict:
    """Median step with and without recording (us).

    One reducer, its recorder taken away at random: two reducers differ by where their arrays lie, and so do odd
    and even steps.
    """
    import mpicomp

    grads = np.random.default_rng(0).standard_normal(N).astype(np.float32)
    plain, traced = (mpicomp.Reducer(comm, "scalecom:chunk=112", trace=trace) for trace in (None, recorder))
    times: dict[str, list[int]] = {"with": [], "without": []}
    for recorded in np.random.default_rng(1).random(STEPS) < 0.5:
        start = perf_counter_ns()
        (traced if recorded else plain).reduce(grads)
        times["with" if recorded else "without"].append(perf_counter_ns() - start)
    return {f"step_{name}_us": statistics.median(values) / 1e3 for name, values in times.items()}


def main() -> None:
    from mpi4py import MPI

    import mpicomp

    comm = mpicomp.Comm(MPI.COMM_SELF)
    with tempfile.TemporaryDirectory() as folder:
        with mpicomp.trace.Recorder(comm, Path(folder) / "events.h5") as recorder:
            result = event_cost(recorder)
        with mpicomp.trace.Recorder(comm, Path(folder) / "steps.h5") as recorder:
            result |= step_cost(comm, recorder)
    result["overhead_percent"] = 100 * (result["step_with_us"] / result["step_without_us"] - 1)
    if "--json" in sys.argv:
        print(json.dumps(result, indent=2))
        return
    print(f"event           {result['event_full_ns']:.0f} ns all arguments, {result['event_short_ns']:.0f} ns few")
    print(f"step of {N:.0e}  {result['step_without_us']:.0f} us without, {result['step_with_us']:.0f} us with recorder")
    print(f"recording       {result['overhead_percent']:.2f} % of a step (goal: under 2 %)")


if __name__ == "__main__":
    main()
