"""Job of tests/benchmarks/bench_torch.py: `torch_step.py TASK SETTINGS`, both in JSON; rank 0 prints the answer.

Steps that are compared take turns, each starts behind a barrier, and has taken as long as its slowest rank.
"""

import copy
import json
import sys
from statistics import median

import torch
from measure import comm, everywhere, timed
from torch import nn
from torch.nn import functional

import mpicomp
from mpicomp.torch import DistributedOptimizer

torch.set_num_threads(1)
CLASSES, MIB = 10, 1 << 20


class Block(nn.Module):
    """Two 3 x 3 convolutions with a short cut, as in He et al. 2016 for CIFAR-10."""

    def __init__(self, inside, out, stride):
        super().__init__()
        self.first = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(out), nn.BatchNorm2d(out)])
        self.short = nn.Conv2d(inside, out, 1, stride, bias=False) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(y)) + self.short(x))


def resnet8(width=16):
    """Three blocks: 6n + 2 layers with n = 1."""
    body = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    body += [Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, CLASSES))


def mlp(width=512):
    layers = [nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)]
    return nn.Sequential(nn.Flatten(), *layers)


MODELS = {"mlp": (mlp, (1, 28, 28)), "resnet8": (resnet8, (3, 32, 32))}


def prepare(model, width, batch):
    """A model, and this rank's batch."""
    build, shape = MODELS[model]
    torch.manual_seed(comm.rank)
    return build(**({"width": width} if width else {})), torch.randn(batch, *shape), torch.randint(CLASSES, (batch,))


def stepper(model, optimizer, x, y):
    def step():
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def check_equal(models):
    """Stop unless models that began alike and took the same steps agree."""
    first, *others = ([p.detach() for p in one.parameters()] for one in models)
    right = all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for one in others for a, b in zip(first, one, strict=True))
    assert everywhere(right), "the models differ"


def overhead(model, batch, rounds, width=0):
    """Seconds of a step of one process: plain PyTorch, under DistributedOptimizer, and so without the shortcut."""
    plain, x, y = prepare(model, width, batch)
    models = {name: copy.deepcopy(plain) for name in ("plain", "wrapped", "through buckets")}
    optimizers = {name: sgd(one) for name, one in models.items()}
    for name, options in (("wrapped", {}), ("through buckets", {"algorithm": "ring"})):
        optimizers[name] = DistributedOptimizer(optimizers[name], models[name].named_parameters(), comm, **options)
    calls = {name: stepper(one, optimizers[name], x, y) for name, one in models.items()}
    seconds = turns(calls, rounds)
    check_equal(models.values())
    return {"seconds": seconds, "parameters": sum(p.numel() for p in plain.parameters())}


def overlap(model, batch, rounds, width=0, scheme="dense", bucket_bytes=None):
    """Seconds of a step of all ranks: without exchange, exchanged after backward, and while it goes on."""
    local, x, y = prepare(model, width, batch)
    models = {name: copy.deepcopy(local) for name in ("alone", "after", "beside")}
    optimizers = {"alone": sgd(models["alone"])}
    ours = mpicomp.Comm(comm)
    for name in ("after", "beside"):
        optimizers[name] = DistributedOptimizer(sgd(models[name]), models[name].named_parameters(), ours, scheme,
                                                overlap=name == "beside", bucket_bytes=bucket_bytes)
    seconds = turns({name: stepper(one, optimizers[name], x, y) for name, one in models.items()}, rounds)
    check_equal([models["after"], models["beside"]])
    parameters = sum(p.numel() for p in local.parameters())
    return {"seconds": seconds, "parameters": parameters, "buckets": len(optimizers["after"]._exchange.buckets)}


def turns(calls, rounds, warm=3):
    """Seconds of every call, in turns whose order goes round; each follows one of its own, as in a training."""
    names, seconds = list(calls), {name: [] for name in calls}
    for turn in range(rounds + warm):
        for i in range(len(names)):
            name = names[(turn + i) % len(names)]
            calls[name]()
            taken = timed(calls[name])
            if turn >= warm:
                seconds[name].append(taken)
    return seconds


TASKS = {"overhead": overhead, "overlap": overlap}

if __name__ == "__main__":
    answer = TASKS[sys.argv[1]](**json.loads(sys.argv[2]))
    if comm.rank == 0:
        answer["median"] = {name: median(each) for name, each in answer["seconds"].items()}
        print(json.dumps(answer), flush=True)
