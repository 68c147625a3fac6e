"""Job of tests/benchmarks/bench_diloco.py: `diloco_step.py SETTINGS`, in JSON; rank 0 prints the answer.

Periods of inner steps that are compared take turns; each starts behind a barrier, and has taken as long as its slowest
rank.
"""

import json
import sys
import time
from functools import partial

import numpy as np
import torch
from mpi4py import MPI

import mpicomp
from mpicomp.apps.language import Language
from mpicomp.apps.texts import load
from mpicomp.torch import DiLoCo, DistributedOptimizer

torch.set_num_threads(1)
comm = mpicomp.Comm(MPI.COMM_WORLD)


def stepper(task, optimizer, rows):
    """One inner step on this rank's rows."""
    optimizer.zero_grad()
    places = torch.from_numpy(rows % task.rows * task._bptt)[:, None] + torch.arange(task._bptt)
    answers, _ = task.network(task._train[places], ())
    torch.nn.functional.cross_entropy(answers.flatten(0, 1), task._train[places + 1].flatten()).backward()
    optimizer.step()


def made(text, settings, options):
    """A model's inner step, what follows it, and what frees its communicators."""
    task = Language(text, 0, "transformer", width=settings["width"], layers=settings["layers"], bptt=settings["bptt"])
    optimizer = torch.optim.AdamW(task.network.parameters(), lr=1e-4)
    if options is None:
        return partial(stepper, task, optimizer), lambda: None, lambda: None
    if options == "every step":
        wrapped = DistributedOptimizer(optimizer, task.network.named_parameters(), comm)
        return partial(stepper, task, wrapped), lambda: None, wrapped.close
    diloco = DiLoCo(task.network, optimizer, comm, settings["every"], **options)
    return partial(stepper, task, optimizer), diloco.step, diloco.close


def main():
    settings = json.loads(sys.argv[1])
    text = load("synthetic:tokens=40000,symbols=65,seed=1")
    modes = {name: made(text, settings, options) for name, options in settings["modes"].items()}
    random = np.random.default_rng(comm.rank)
    seconds = {name: [] for name in modes}
    every = settings["every"]
    for period in range(settings["periods"] + 1):
        for name, (step, after, _) in modes.items():
            comm.Barrier()
            start = time.perf_counter()
            for _ in range(every if period else every + every // 2):  # warms up; then exchanges end in their period
                step(random.integers(0, 500, settings["batch"]))
                after()
            taken = np.array([time.perf_counter() - start])
            comm.allreduce_in_place(taken, op="max")
            if period:
                seconds[name].append(taken[0] / every)
    for _, _, close in modes.values():
        close()
    count = sum(one.size for one in Language(text, 0, "transformer", width=settings["width"],
                                             layers=settings["layers"]).parameters.values())
    if comm.rank == 0:
        print(json.dumps({"parameters": count, "seconds": seconds}))


main()
