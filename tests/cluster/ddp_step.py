"""Job of tests/benchmarks/bench_peers.py: `ddp_step.py SETTINGS`, in JSON; rank 0 prints the answer.

Steps of DistributedDataParallel over Gloo, with hooks of PyTorch's own, over backend mpicomp, and with our hooks over
MPI. The model has the arrays of a known one but computes next to nothing: its loss is linear, so a step is its
exchange, with the copies about it.
"""

import json
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from measure import comm, everywhere
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch_step import turns

from mpicomp import Comm, Reducer
from mpicomp.simulate.models import named
from mpicomp.torch import ddp_hook

torch.set_num_threads(1)
ONE_BUCKET_MB = 1000
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")  # of this host's link, headers included
DENSE, BACKEND, ALONE, RANK, DENSITY = "DDP, Gloo", "DDP, backend mpicomp", "DDP, no exchange", 4, 0.01


class Linear(nn.Module):
    """A loss with the given gradient."""

    def __init__(self, slopes):
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros_like(slope)) for slope in slopes])
        self.slopes = slopes

    def forward(self):
        return sum((weight * slope).sum() for weight, slope in zip(self.weights, self.slopes, strict=True))


def no_exchange(_, bucket):
    """Hook of a step without communication, which the times of all methods contain."""
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


def gathered_topk(memories, bucket):
    """Top-k with residual memories, values and indices all-gathered: what GRACE and other comparisons call top-k."""
    flat = bucket.buffer()
    memory = memories.setdefault((bucket.index(), flat.numel()), torch.zeros_like(flat))
    memory += flat
    chosen = torch.topk(memory.abs(), max(1, int(DENSITY * flat.numel())), sorted=False).indices
    mine = memory[chosen], chosen.to(torch.int32)
    memory[chosen] = 0
    everyone = [[torch.empty_like(one) for _ in range(comm.size)] for one in mine]
    for one, lists in zip(mine, everyone, strict=True):
        dist.all_gather(lists, one)
    flat.zero_()
    for values, indices in zip(*everyone, strict=True):
        flat.index_add_(0, indices.long(), values)
    done = torch.futures.Future()
    done.set_result(flat.div_(comm.size))
    return done


def hooks(schemes):
    """State and hook of each method; None for DDP's own all-reduce."""
    power = PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=2)
    theirs = {
        DENSE: None, BACKEND: None, "fp16_compress_hook, Gloo": (None, fp16_compress_hook),
        f"powerSGD_hook, rank {RANK}, Gloo": (power, powerSGD_hook), "gathered top-k, Gloo": ({}, gathered_topk),
        ALONE: (None, no_exchange),
    }  # fmt: skip
    return theirs | {f"ddp_hook {scheme}": (None, ddp_hook(comm, scheme)) for scheme in schemes}


def connect():
    """PyTorch's process group of the same ranks."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = comm.bcast(socket.gethostname()), "29500"
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group("gloo", rank=comm.rank, world_size=comm.size)


def main(model, schemes, rounds):
    """Seconds of steps that take turns, processor seconds per rank, and the bytes that a host's link sent."""
    connect()
    generator = torch.Generator().manual_seed(comm.rank)
    slopes = [torch.randn(shape, generator=generator) for _, shape, _ in named(model).layers]
    methods, models, sent, busy = hooks(schemes), {}, {}, {}
    ours = dist.new_group(backend="mpicomp")
    for name, hook in methods.items():
        # Over Gloo the all-reduces that its callbacks start mix where several buckets are under way: the job aborts.
        one_bucket = ONE_BUCKET_MB if hook and hook[1] is powerSGD_hook else None
        models[name] = DistributedDataParallel(Linear(slopes), bucket_cap_mb=one_bucket, gradient_as_bucket_view=True,
                                               process_group=ours if name == BACKEND else None)
        if hook:
            models[name].register_comm_hook(*hook)

    def step(name):
        models[name].zero_grad()
        models[name]().backward()

    def measured(name, call):
        before, start = int(SENT.read_text()), time.process_time()
        call()
        busy.setdefault(name, []).append(time.process_time() - start)
        sent.setdefault(name, []).append(int(SENT.read_text()) - before)

    calls = {name: partial(step, name) for name in methods}
    calls |= {f"Reducer {scheme}": step_alone(scheme, slopes) for scheme in schemes if scheme.startswith("scalecom")}
    seconds = turns({name: partial(measured, name, call) for name, call in calls.items()}, rounds)
    check({name: model for name, model in models.items() if name != ALONE})
    sent = {name: comm.allreduce(sum(each[-rounds:]) / rounds) / comm.size for name, each in sent.items()}
    busy = {name: comm.allreduce(median(each[-rounds:])) / comm.size for name, each in busy.items()}
    for _, hook in filter(None, methods.values()):
        if hasattr(hook, "close"):
            hook.close()
    dist.destroy_process_group()
    return {"seconds": seconds, "bytes_per_host": sent, "busy_seconds": busy}


def step_alone(scheme, slopes):
    """A step of a Reducer on one vector of the gradients' length."""
    reducer = Reducer(Comm(comm), scheme)
    gradient = torch.cat([slope.ravel() for slope in slopes]).numpy()
    mean = np.empty_like(gradient)
    return lambda: reducer.reduce(gradient, out=mean)


def check(models):
    """Stop unless gradients are the same on all ranks, and those of dense methods DDP's own."""
    dense = gradient(models[DENSE])
    tolerances = {BACKEND: 1e-6, "ddp_hook dense": 1e-6, "fp16_compress_hook, Gloo": 4e-3, "ddp_hook half": 4e-3}
    for name, model in models.items():
        mine = gradient(model)
        first = mine.clone()
        dist.broadcast(first, 0)
        assert everywhere(torch.equal(first, mine)), f"{name}: gradients differ"
        if name in tolerances:
            assert everywhere(torch.allclose(mine, dense, rtol=0, atol=tolerances[name])), name


def gradient(model):
    return torch.cat([weight.grad.ravel() for weight in model.parameters()])


if __name__ == "__main__":
    found = main(**json.loads(sys.argv[1]))
    if comm.rank == 0:
        print(json.dumps(found), flush=True)
