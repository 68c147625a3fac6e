"""Job of tests/benchmarks/bench_torch.py: `fsdp_step.py SETTINGS`, in JSON; rank 0 prints the answer.

Steps of FSDP2 and HSDP over Gloo, and with `mpicomp.torch.compress`. The model computes next to nothing: its loss is
linear, so a step is two all-gathers of parameters and the reduction of gradients, with the copies about them.
"""

import json
import sys
from functools import partial

import torch
import torch.distributed as dist
from ddp_step import SENT, Linear, connect
from measure import comm
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch_step import turns

from mpicomp.torch import compress

torch.set_num_threads(1)


def made(elements, meshes, kind, scheme, gather):
    """A sharded model of one unit, and its compression if it has a scheme."""
    slopes = [torch.randn(elements, generator=torch.Generator().manual_seed(comm.rank))]
    model = fully_shard(Linear(slopes), mesh=meshes[kind], reshard_after_forward=True)
    return model, scheme and compress(model, scheme, gather=gather)


def main(elements, methods, rounds):
    """Seconds of steps that take turns, and the bytes that a host's link sent in each."""
    connect()
    meshes = {"shards": init_device_mesh("cpu", (comm.size,)),
              "replicas": init_device_mesh("cpu", (comm.size, 1), mesh_dim_names=("replicas", "shards"))}
    models = {" ".join(map(str, method)): made(elements, meshes, *method) for method in methods}
    sent = {}

    def step(name):
        before = int(SENT.read_text())
        models[name][0].zero_grad()
        models[name][0]().backward()
        sent.setdefault(name, []).append(int(SENT.read_text()) - before)

    seconds = turns({name: partial(step, name) for name in models}, rounds)
    sent = {name: comm.allreduce(sum(each[-rounds:]) / rounds) / comm.size for name, each in sent.items()}
    for _, compression in models.values():
        if compression:
            compression.close()
    dist.destroy_process_group()
    return {"seconds": seconds, "bytes_per_host": sent}


if __name__ == "__main__":
    found = main(**json.loads(sys.argv[1]))
    if comm.rank == 0:
        print(json.dumps(found), flush=True)
