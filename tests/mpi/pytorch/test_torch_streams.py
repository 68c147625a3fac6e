"""Gradients on several streams of a GPU: a stand-in whose writes are there only once an event of their stream is."""

from contextlib import nullcontext

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch
from fake_device import Home
from torch import nn

from mpicomp.ops import device as device_module
from mpicomp.torch import DistributedOptimizer, OneBitAdam, ddp_hook
from mpicomp.torch import tensor_collectives as collectives
from mpicomp.torch.flat import FlatBucket
from mpicomp.torch.process_group import MpicompGroup
from mpicomp.torch.works import Turns


class OnGPU(torch.Tensor):
    """A tensor of the host that says it is on a GPU. Conversions, copies and divisions are queued."""

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

    def clone(self):
        return torch.full(self.shape, 7.0, dtype=self.dtype).as_subclass(OnGPU).copy_(self)

    def div_(self, *given, **named):
        torch.cuda.current_stream().queue(lambda: plain(self).div_(*given, **named))
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

    def home(self, array):
        return Home()

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


class OfCuPy(np.ndarray):
    """An array of the GPU in CuPy's hands, whose stream is another than PyTorch's."""


class GPUOfNccl(GPU):
    """Its collectives run when CuPy's stream is waited for."""

    def __init__(self):
        self.stream = Stream()

    def matches(self, array):
        return isinstance(array, (OnGPU, OfCuPy))

    def flat(self, tensor):
        return plain(tensor).numpy().view(OfCuPy)

    def synchronize(self, array):
        self.stream.synchronize()


class ByNccl:
    """A ``Comm`` whose verbs are queued, as NCCL's are."""

    def __init__(self, comm, stream):
        self.comm, self.queue = comm, stream.queue

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def allreduce_in_place(self, x, op, kind):
        self.queue(lambda: self.comm.allreduce_in_place(x.view(np.ndarray), op=op, kind=kind))

    def broadcast(self, x, root):
        self.queue(lambda: self.comm.broadcast(x.view(np.ndarray), root))

    def gather_to_all(self, x, counts, out):
        self.queue(lambda: self.comm.gather_to_all(x.view(np.ndarray), counts, out.view(np.ndarray)))
        return out, counts

    def send_and_receive(self, outgoing, incoming, like):
        received = {rank: np.zeros(nbytes, np.uint8) for rank, nbytes in incoming.items()}

        def run():
            sent = {rank: x.view(np.ndarray) for rank, x in outgoing.items()}
            for rank, x in self.comm.send_and_receive(sent, incoming, np.empty(0)).items():
                received[rank][...] = x

        self.queue(run)
        return received


@pytest.fixture
def queueing(comm, streams):
    """PyTorch's stream, and a ``Comm`` of NCCL's kind."""
    gpu = GPUOfNccl()
    device_module.register(gpu)
    yield streams[0][0], ByNccl(comm, gpu.stream)
    device_module.unregister(gpu)


def test_movements_wait_for_the_streams_of_pytorch_and_of_nccl(comm, queueing):
    """All that the caller has queued is there before, and the result is there after: its streams wait for no other."""
    stream, by_nccl = queueing
    size, rank = comm.size, comm.rank

    def late(number):
        tensor = torch.zeros(3).as_subclass(OnGPU)
        stream.queue(lambda: plain(tensor).fill_(number))
        return tensor

    def empty(n):
        return [torch.full((3,), -1.0).as_subclass(OnGPU) for _ in range(n)]

    def given(tensors):
        return [plain(one)[0].item() for one in tensors]

    tensor = late(rank)
    collectives.broadcast(by_nccl, [tensor], size - 1)
    assert given([tensor]) == [size - 1]
    whole = torch.zeros(3 * size).as_subclass(OnGPU)
    collectives.all_gather_single(by_nccl, whole, late(rank))
    assert plain(whole).tolist() == [one for one in range(size) for _ in range(3)]
    outputs = empty(size)
    collectives.all_to_all(by_nccl, outputs, [late(10 * rank + one) for one in range(size)])
    stream.synchronize()  # copies of a rank's own part are PyTorch's
    assert given(outputs) == [10 * one + rank for one in range(size)]
    mine = empty(size) if rank == 0 else []
    sent = late(rank)
    collectives.gather(by_nccl, mine, sent, 0)
    plain(sent).fill_(-2.0)  # at once
    comm.Barrier()
    stream.synchronize()
    assert given(mine) == list(range(len(mine)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_reductions_wait_for_the_streams_of_pytorch_and_of_nccl(comm, queueing, dtype):
    """Those that ``Comm.Allreduce`` does not do by itself: what PyTorch queues then may be on any stream."""
    stream, by_nccl = queueing
    size, rank, total = comm.size, comm.rank, comm.size * (comm.size + 1) / 2

    def late(n):
        tensor = torch.zeros(n, dtype=dtype).as_subclass(OnGPU)
        stream.queue(lambda: plain(tensor).fill_(2 * rank + 2.0))
        return tensor

    def given(tensor):
        stream.synchronize()
        return plain(tensor).tolist()

    tensors = [late(3), late(2)]
    collectives.all_reduce(by_nccl, tensors, "SUM")
    assert [given(one) for one in tensors] == [[2 * total] * 3, [2 * total] * 2]
    tensor = late(3)
    collectives.all_reduce(by_nccl, [tensor], "AVG")
    assert given(tensor) == [size + 1.0] * 3
    tensor = late(3)
    collectives.reduce(by_nccl, tensor, "SUM", 0)
    assert given(tensor) == [2 * total if rank == 0 else 2 * rank + 2.0] * 3
    output = torch.zeros(3, dtype=dtype).as_subclass(OnGPU)
    collectives.reduce_scatter_single(by_nccl, output, late(3 * size), "AVG")
    assert given(output) == [size + 1.0] * 3


def test_dtypes_that_cupy_lacks_are_moved(comm, queueing):
    """A movement needs their bytes alone."""
    tensor = torch.full((3,), comm.rank + 1.0).to(torch.float8_e4m3fn).as_subclass(OnGPU)
    collectives.broadcast(queueing[1], [tensor], comm.size - 1)
    assert plain(tensor).float().tolist() == [comm.size] * 3


def test_a_step_of_1_bit_adam_leaves_nothing_queued(comm, queueing, monkeypatch):
    """The next forward pass reads the parameters on PyTorch's stream, which does not wait for CuPy's."""
    parameter = nn.Parameter(torch.zeros(3).as_subclass(OnGPU))
    parameter.grad = torch.ones(3).as_subclass(OnGPU)
    optimizer = OneBitAdam([parameter], comm, broadcast=False)

    def step(gradients, rates):
        gradients()
        (view,) = optimizer.exchange.parameters.values()
        queueing[1].queue(lambda: view.fill(5.0))

    monkeypatch.setattr(optimizer.exchange, "step", step)
    optimizer.step()
    assert plain(parameter).tolist() == [5.0] * 3
    optimizer.close()


def test_a_call_in_a_thread_waits_for_its_callers_stream(comm, streams):
    """Also where it has no output."""
    made, _ = streams
    tensor, seen = torch.zeros(3).as_subclass(OnGPU), []
    made[0].queue(lambda: plain(tensor).fill_(5.0))
    turns = Turns(comm, threaded=True)
    turns.start(lambda: seen.append(plain(tensor)[0].item()), [], False, [tensor]).wait()
    turns.stop()
    assert seen == [5.0]


class OnSecondGPU(OnGPU):
    device = torch.device("cuda", 1)


def test_a_call_in_a_thread_waits_for_the_streams_of_all_its_tensors(comm, streams, monkeypatch):
    made, _ = streams
    monkeypatch.setattr(torch.cuda, "current_stream", lambda of=None: made[of.index or 0])
    tensors = [torch.zeros(3).as_subclass(kind) for kind in (OnGPU, OnSecondGPU)]
    for stream, tensor in zip(made, tensors, strict=True):
        stream.queue(lambda tensor=tensor: plain(tensor).fill_(5.0))

    def call():
        for stream, tensor in zip(made, tensors, strict=True):
            stream.queue(lambda tensor=tensor: plain(tensor).add_(1.0))
        seen.extend(plain(tensor)[0].item() for tensor in tensors)

    seen, turns = [], Turns(comm, threaded=True)
    turns.start(call, tensors, False).wait()
    turns.stop()
    assert seen == [5.0, 5.0]
    assert [plain(tensor)[0].item() for tensor in tensors] == [6.0, 6.0]


def test_a_staged_message_arrives_behind_its_callers_stream(comm, streams):
    """Also where the wait is on another stream."""
    made, current = streams
    group, tensor = MpicompGroup(comm.Dup(), None), torch.zeros(3).as_subclass(OnGPU)
    current[0] = made[1]
    made[1].queue(lambda: plain(tensor).fill_(5.0))
    received = group.recv([tensor], comm.rank, 3)
    current[0] = made[0]
    group.send([torch.full((3,), 2.0)], comm.rank, 3).wait()
    received.wait()
    assert plain(tensor).tolist() == [2.0] * 3
    made[1].synchronize()
    assert plain(tensor).tolist() == [2.0] * 3
    group.shutdown()
