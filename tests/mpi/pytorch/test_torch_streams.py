"""Gradients on several streams of a GPU: a stand-in whose writes are there only once an event of their stream is."""

from contextlib import nullcontext

import needs_torch  # noqa: F401
import pytest
import torch
from torch import nn

from mpicomp.ops import device as device_module
from mpicomp.torch import DistributedOptimizer, ddp_hook
from mpicomp.torch.flat import FlatBucket


class OnGPU(torch.Tensor):
    """A tensor of the host that says it is on a GPU. Conversions are queued, and the memory is other till then."""

    is_cuda = True

    def to(self, dtype):
        if dtype == self.dtype:
            return self
        made = torch.full(self.shape, 7.0, dtype=dtype).as_subclass(OnGPU)
        torch.cuda.current_stream().queue(lambda: plain(made).copy_(plain(self)))
        return made

    def copy_(self, other):
        torch.cuda.current_stream().queue(lambda: plain(self).copy_(plain(other)))
        return self


def plain(tensor):
    return tensor.as_subclass(torch.Tensor)


class Stream:
    """Work queued on it is done when somebody waits for an event recorded after it."""

    def __init__(self):
        self.queued = []

    def queue(self, work):
        self.queued.append(work)

    def record_event(self):
        return Event(self, len(self.queued))

    def synchronize(self):
        self.record_event().synchronize()


class Event:
    def __init__(self, stream, count):
        self.stream, self.count = stream, count

    def synchronize(self):
        for at in range(self.count):
            work, self.stream.queued[at] = self.stream.queued[at], lambda: None
            work()


class GPU:
    """The device of such tensors, whose arrays are NumPy's."""

    def matches(self, array):
        return isinstance(array, OnGPU)

    def flat(self, tensor):
        return plain(tensor).numpy()

    def side_stream(self, array):
        return nullcontext()


@pytest.fixture
def streams(monkeypatch):
    """Two streams, of which the first is the current one until a test takes the other."""
    device, made = GPU(), [Stream(), Stream()]
    current = [made[0]]
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of=None: current[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda of: None)
    device_module.register(device)
    yield made, current
    device_module.unregister(device)


@pytest.mark.parametrize("bucket_bytes", [1, 1 << 20], ids=["many buckets", "one bucket"])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_bucket_waits_for_every_stream_that_wrote_into_it(comm, seed, streams, monkeypatch, overlap, bucket_bytes):
    """Weights' gradients come on one stream, biases' on another."""
    made, current = streams
    torch.manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(), comm,
                                     overlap=overlap, bucket_bytes=bucket_bytes)
    exchange, plainly = optimizer._exchange, FlatBucket.put
    for bucket in exchange.buckets:
        bucket.flat = bucket.flat.as_subclass(OnGPU)
    written = exchange.put

    def put(parameter, factor):
        current[0] = made[parameter.dim() - 1]
        written(parameter, factor)
        current[0] = made[0]

    def late(bucket, index, gradient, factor):
        kept = gradient.clone()
        current[0].queue(lambda: plainly(bucket, index, kept, factor))

    monkeypatch.setattr(exchange, "put", put)
    monkeypatch.setattr(FlatBucket, "put", late)
    for _ in range(2):
        optimizer.zero_grad()
        everyone = torch.randint(-8, 8, (comm.size, 4, 6), generator=torch.Generator().manual_seed(seed)).float()
        expected = {name: sum_of_gradients(model, everyone)[name] / comm.size for name, _ in model.named_parameters()}
        model(everyone[comm.rank]).sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(plain(parameter.grad), expected[name])
    optimizer.close()


def sum_of_gradients(model, everyone):
    """Sum of the gradients of all ranks' batches, without the optimizer's hooks."""
    values = {name: parameter.detach().clone().requires_grad_() for name, parameter in model.named_parameters()}
    for x in everyone:
        torch.func.functional_call(model, values, (x,)).sum().backward()
    return {name: value.grad for name, value in values.items()}


class TorchBucket:
    """Stand-in for the bucket that DDP passes to a hook."""

    def __init__(self, flat, parameter):
        self.flat, self.parameter = flat, parameter

    def index(self):
        return 0

    def is_last(self):
        return True

    def buffer(self):
        return self.flat

    def parameters(self):
        return [self.parameter]


@pytest.mark.parametrize("scheme", ["dense", "topk:density=0.5"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_ddp_gets_what_is_done(comm, seed, streams, dtype, scheme):
    """Half precision is widened and narrowed by PyTorch, on a stream of which CuPy and DDP know nothing."""
    made, _ = streams
    hook, total = ddp_hook(comm, scheme), comm.size * (comm.size + 1) / 2
    for _ in range(2):  # the first goes dense
        flat, parameter = torch.zeros(12, dtype=dtype).as_subclass(OnGPU), nn.Parameter(torch.zeros(12, dtype=dtype))
        made[0].queue(lambda flat=flat: plain(flat).fill_(comm.rank + 1.0))
        mean = plain(hook(None, TorchBucket(flat, parameter)).wait())
        kept = 12 if scheme == "dense" or not hook.reducers else 6
        expected = torch.tensor([total / comm.size] * kept + [0.0] * (12 - kept), dtype=dtype)
        assert torch.equal(mean, expected)
    hook.close()
