"""``DistributedOptimizer`` and the DDP hook on several ranks, against one process with all the data."""

import copy
import io
import itertools
import time

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch
from mpi4py import MPI
from scheme_sets import each, small
from torch import nn

import mpicomp
from mpicomp import schemes
from mpicomp.errors import Disagreement, InvalidArgument, NonFiniteGradient
from mpicomp.torch import SAM, DistributedOptimizer, broadcast_parameters, ddp, ddp_hook

torch.set_num_threads(1)
ROWS = 4  # of a rank's batch
LOCAL = {"localsgd", "error-reset"}  # ranks get different means, by design
SMALL = {"density": "0.1", "chunk": "7", "bin": "9", "columns": "64", "row": "5", "period": "2",
         "candidates": "dense+scalecom/chunk=7", "error": "0.001"}
STATEFUL = ["topk:density=0.2", "powersgd:rank=1", "dgc:density=0.1,dense=1d", "sketchsgd:density=0.2,columns=64"]


class Net(nn.Module):
    """A convolution, a norm, a layer used twice, one that only some ranks use and one that none does."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4)
        self.twice, self.some, self.none, self.last = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x, some=False):
        x = torch.tanh(self.norm(self.conv(x))).flatten(1)
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        return self.last(self.some(x) if some else x)


def made(seed, dtype=torch.float32):
    torch.manual_seed(seed)
    return Net().to(dtype)


def batches(seed, size, steps=4, dtype=torch.float32):
    """[step][rank] -> a batch."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(steps, size, ROWS, 2, 4, 4, generator=generator).to(dtype)


def loss_of(model, x, **how):
    return model(x, **how).pow(2).mean()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)


def wrap(model, comm, scheme="dense", inner=None, **options):
    options = {"bucket_bytes": 600, **options}
    return DistributedOptimizer(inner or sgd(model), model.named_parameters(), comm, scheme, **options)


def train(model, optimizer, own, **how):
    for x in own:
        optimizer.zero_grad()
        loss_of(model, x, **how).backward()
        optimizer.step()


def bits(model):
    return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())


def assert_equal_on_all_ranks(comm, model):
    assert len(set(comm.allgather(bits(model)))) == 1


def assert_close(model, other, rtol, atol=0.0):
    for (name, a), b in zip(model.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(a, b[1], rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


def test_frozen_parameters_begin_alike_too(comm, seed):
    model = made(seed + comm.rank)
    model.conv.requires_grad_(False)
    optimizer = wrap(model, comm)
    assert_equal_on_all_ranks(comm, model)
    train(model, optimizer, batches(seed, comm.size)[:, comm.rank])
    assert_equal_on_all_ranks(comm, model)
    optimizer.close()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("kind", ["sgd", "adam"])
def test_dense_is_one_process_with_all_batches(comm, seed, kind, overlap):
    kinds = {"sgd": sgd, "adam": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)}
    model, alone = made(seed + comm.rank, torch.float64), made(seed, torch.float64)  # rank 0's is broadcast
    optimizer, plain = wrap(model, comm, inner=kinds[kind](model), overlap=overlap), kinds[kind](alone)
    for data in batches(seed, comm.size, dtype=torch.float64):
        for one, its, x in ((model, optimizer, data[comm.rank]), (alone, plain, data.flatten(0, 1))):
            its.zero_grad()
            loss_of(one, x).backward()
            nn.utils.clip_grad_norm_(one.parameters(), 0.1)
            its.step()
    assert_close(model, alone, rtol=1e-9, atol=1e-12)
    assert_equal_on_all_ranks(comm, model)
    assert model.none.weight.grad is None  # weight decay left it alone, as without us
    optimizer.close()


@pytest.mark.parametrize("name", each(schemes.names()))
def test_every_scheme(comm, seed, name):
    """Two steps beside backward have the bits of two steps after it, and ranks agree."""
    if comm.size != 2:
        pytest.skip("two ranks will do: test_every_scheme.py has the others")
    text = small(name, {**SMALL, "momentum": "0"})
    models = []
    for overlap in (True, False):
        model = made(seed)
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = wrap(model, comm, text, inner, overlap=overlap, bucket_bytes=2000)
        train(model, optimizer, batches(seed, comm.size, 2)[:, comm.rank])
        optimizer.close()
        models.append(model)
    assert bits(models[0]) == bits(models[1])
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    if name not in LOCAL:
        assert_equal_on_all_ranks(comm, model)


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("overlap", [True, False])
def test_dgc_gives_dense_parameters_the_momentum_of_sgd(comm, seed, overlap, nesterov):
    """Density 1 is SGD with momentum in one process, in all buckets, for weights and for biases."""
    model, alone = made(seed, torch.float64), made(seed, torch.float64)
    text = f"dgc:density=1,masking=no,dense=1d,momentum=0.9,nesterov={'yes' if nesterov else 'no'}"
    optimizer = wrap(model, comm, text, torch.optim.SGD(model.parameters(), lr=0.1), overlap=overlap)
    plain = torch.optim.SGD(alone.parameters(), lr=0.1, momentum=0.9, nesterov=nesterov)
    for data in batches(seed, comm.size, 5, dtype=torch.float64):
        for one, its, x in ((model, optimizer, data[comm.rank]), (alone, plain, data.flatten(0, 1))):
            its.zero_grad()
            loss_of(one, x).backward()
            its.step()
    assert_close(model, alone, rtol=1e-9, atol=1e-12)
    assert_equal_on_all_ranks(comm, model)
    assert sum("dense/velocity" in reducer.state_dict() for reducer in optimizer._exchange.reducers) > 1
    optimizer.close()


def test_unused_on_some_ranks(comm, seed):
    """They contribute zero there, and every rank steps."""
    model, alone = made(seed, torch.float64), made(seed, torch.float64)
    optimizer, plain = wrap(model, comm), sgd(alone)
    for data in batches(seed, comm.size, dtype=torch.float64):
        optimizer.zero_grad()
        loss_of(model, data[comm.rank], some=comm.rank == 0).backward()
        optimizer.step()
        plain.zero_grad()
        for rank, x in enumerate(data):
            (loss_of(alone, x, some=rank == 0) / comm.size).backward()
        plain.step()
    assert_close(model, alone, rtol=1e-9, atol=1e-12)
    optimizer.close()


def test_accumulation_is_one_large_batch(comm, seed):
    model, alone = made(seed, torch.float64), made(seed, torch.float64)
    optimizer, plain = wrap(model, comm), sgd(alone)
    data = batches(seed, comm.size, 6, torch.float64)
    for first in (0, 3):
        optimizer.zero_grad()
        with optimizer.no_sync():
            for x in data[first : first + 2, comm.rank]:
                (loss_of(model, x) / 3).backward()
        (loss_of(model, data[first + 2, comm.rank]) / 3).backward()
        optimizer.step()
        plain.zero_grad()
        loss_of(alone, data[first : first + 3].flatten(0, 2)).backward()
        plain.step()
    assert_close(model, alone, rtol=1e-9, atol=1e-12)
    optimizer.close()


@pytest.mark.parametrize("scheme", STATEFUL)
def test_resumes_bit_for_bit(comm, seed, scheme):
    """Every rank goes on from its own file."""
    def fresh():
        model = made(seed)
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.0 if "dgc" in scheme else 0.9)
        return model, wrap(model, comm, scheme, inner)

    own = batches(seed, comm.size, 6)[:, comm.rank]
    model, optimizer = fresh()
    train(model, optimizer, own[:3])
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    train(model, optimizer, own[3:])
    other, resumed = fresh()
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    other.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    train(other, resumed, own[3:])
    assert bits(model) == bits(other)
    for one in (optimizer, resumed):
        one.close()


@pytest.mark.parametrize(("scheme", "nonfinite"), [
    ("dense", "raise"), ("topk:density=0.2", "raise"), ("topk:density=0.2", "allow"), ("powersgd:rank=1", "raise"),
    ("localsgd:period=3", "raise"),
])  # fmt: skip
def test_an_overflow_on_one_rank_skips_the_step_on_all(comm, seed, scheme, nonfinite):
    """The scaled run without the overflowing batch has the bits of one that never saw it."""
    runs = []
    for overflows in (True, False):
        model, scaler = made(seed), torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1000)
        optimizer = wrap(model, comm, scheme, grad_scaler=scaler, nonfinite=nonfinite)
        for step, x in enumerate(batches(seed, comm.size, 5)[:, comm.rank]):
            if step == 2 and not overflows:
                continue
            optimizer.zero_grad()
            loss = loss_of(model, x)
            scale = 1e38 if step == 2 and comm.rank == comm.size - 1 else 1.0
            scaler.scale(loss * scale).backward()
            scaler.step(optimizer)
            scaler.update()
            assert optimizer.skipped == (step == 2)
            assert scaler.get_scale() == (2.0**9 if overflows and step >= 2 else 2.0**10)
        runs.append([bits(model), [norms(reducer) for reducer in optimizer._exchange.reducers]])
        optimizer.close()
    assert runs[0] == runs[1]


def norms(reducer):
    return {key: value.tobytes() for key, value in reducer.state_dict().items() if key.startswith("memory/")}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_is_raised_on_every_rank(comm, seed, bad):
    model = made(seed)
    optimizer = wrap(model, comm)
    x = batches(seed, comm.size, 1)[0, comm.rank].clone()
    if comm.rank == comm.size - 1:
        x[1, 0, 2, 2] = bad
    with pytest.raises(NonFiniteGradient, match=f"rank {comm.size - 1}: last"):
        loss_of(model, x).backward()
    optimizer.zero_grad()
    train(model, optimizer, batches(seed, comm.size, 1)[:, comm.rank])
    assert_equal_on_all_ranks(comm, model)
    optimizer.close()


CHANGES = {
    "shape": lambda model: setattr(model, "last", nn.Linear(16, 5)),
    "dtype": lambda model: model.last.double(),
    "name": lambda model: (setattr(model, "other", model.last), delattr(model, "last")),
    "count": lambda model: setattr(model, "more", nn.Linear(2, 2)),
    "frozen": lambda model: model.last.requires_grad_(False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_mismatched_models(comm, seed, change):
    model = made(seed)
    if comm.rank == comm.size - 1:
        CHANGES[change](model)
    before = bits(model)
    with pytest.raises(Disagreement, match=rf"rank {comm.size - 1}: the model differs from rank 0's: its tensor"):
        wrap(model, comm)
    assert bits(model) == before


def test_begins_with_rank_0(comm, seed):
    """Parameters, buffers, the state of a used optimizer and its learning rate."""
    model, data = made(seed + comm.rank), batches(seed, comm.size, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + comm.rank), momentum=0.9)
    if comm.rank == 0:
        train(model, inner, data[:, 0])
    optimizer = wrap(model, comm, inner=inner)
    assert_equal_on_all_ranks(comm, model)
    train(model, optimizer, data[:, comm.rank])
    assert_equal_on_all_ranks(comm, model)
    assert optimizer.param_groups[0]["lr"] == 0.1
    norm = nn.BatchNorm1d(3).half()
    norm.running_mean += comm.rank
    norm.num_batches_tracked += comm.rank
    broadcast_parameters(norm.state_dict(), comm)
    assert norm.running_mean.tolist() == [0, 0, 0] and norm.num_batches_tracked == 0
    optimizer.close()


def test_a_parameter_of_one_element_with_a_stride(comm):
    scale = nn.Parameter(torch.full((1, 6), float(comm.rank))[:, 2])
    optimizer = DistributedOptimizer(torch.optim.SGD([scale], lr=1.0), [("scale", scale)], comm)
    assert scale.tolist() == [0]
    (scale * comm.rank).sum().backward()
    optimizer.step()
    assert scale.tolist() == [-(comm.size - 1) / 2]
    optimizer.close()


def test_conjugated_buffers_begin_alike(comm):
    buffer = torch.full((2,), complex(1, comm.rank)).conj()
    broadcast_parameters({"buffer": buffer}, comm, comm.size - 1)
    assert buffer.tolist() == [complex(1, 1 - comm.size)] * 2


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_averaged_in_float32(comm, seed, dtype):
    parameter = nn.Parameter(torch.zeros(500, dtype=dtype))
    optimizer = DistributedOptimizer(torch.optim.SGD([parameter], 1.0), [("w", parameter)], comm)
    everyone = torch.randn(comm.size, 500, generator=torch.Generator().manual_seed(seed)).to(dtype)
    (parameter * everyone[comm.rank]).sum().backward()
    mean = parameter.grad.clone()
    expected = (everyone.float().sum(0) / comm.size).to(dtype)
    torch.testing.assert_close(mean, expected, rtol=2**-10 if dtype == torch.float16 else 2**-7, atol=1e-6)
    optimizer.step()
    optimizer.close()


def test_a_rank_without_data(comm, seed):
    """It contributes zero by ``synchronize``, and steps with the others."""
    model, alone = made(seed, torch.float64), made(seed, torch.float64)
    optimizer, plain = wrap(model, comm), sgd(alone)
    data = batches(seed, comm.size, 1, torch.float64)[0]
    if comm.rank == 0:
        loss_of(model, data[0]).backward()
    else:
        optimizer.synchronize()
    optimizer.step()
    (loss_of(alone, data[0]) / comm.size).backward()
    plain.step()
    assert_close(model, alone, rtol=1e-9, atol=1e-12)
    optimizer.close()


def test_sam_steps_from_every_ranks_own_worst_point(comm, seed):
    model = made(seed)
    optimizer = wrap(model, comm, inner=SAM(sgd(model), rho=0.1))
    for x in batches(seed, comm.size, 3)[:, comm.rank]:
        optimizer.zero_grad()
        with optimizer.no_sync():
            loss_of(model, x).backward()

        def closure(x=x):
            optimizer.zero_grad()
            loss = loss_of(model, x)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert_equal_on_all_ranks(comm, model)
    optimizer.close()


def test_sam_saves_what_it_loads(comm, seed):
    """With the error memories of the optimizer inside it."""
    model = made(seed)
    inner = wrap(model, comm, "topk:density=0.3")
    sam = SAM(inner, rho=0.1)
    loss_of(model, batches(seed, comm.size, 1)[0, comm.rank]).backward()
    inner.step()
    saved = copy.deepcopy(sam.state_dict())
    sam.load_state_dict(saved)
    for before, reducer in zip(saved["reducers"]["states"], inner.reducers.values(), strict=True):
        names = [name for name in before if name.startswith("memory/")]
        assert names and all(np.array_equal(reducer.state_dict()[name], before[name]) for name in names)
    inner.close()


def test_the_loss_keeps_the_precision_that_line_searches_need(comm):
    parameter = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = DistributedOptimizer(torch.optim.SGD([parameter], 0.1), [("w", parameter)], comm)
    for loss in (torch.tensor(1.0, dtype=torch.float64, requires_grad=True) / 3, 1 / 3):
        def closure(loss=loss):
            optimizer.zero_grad()
            parameter.sum().backward()
            return loss

        found = optimizer.step(closure)
        assert found.dtype == torch.float64 and abs(found.item() - 1 / 3) < 1e-15
    optimizer.close()


class TorchBucket:
    """Stand-in for DDP's bucket, with the methods that PyTorch's hooks call."""

    def __init__(self, gradients, index=0, last=True):
        self._index, self._last = index, last
        self._flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self._parts = [part.view(one.shape) for part, one in
                       zip(self._flat.split([one.numel() for one in gradients]), gradients, strict=True)]

    def index(self):
        return self._index

    def is_last(self):
        return self._last

    def buffer(self):
        return self._flat

    def gradients(self):
        return self._parts

    parameters = gradients

    def set_buffer(self, flat):
        self._flat = flat


def test_where_a_bucket_is_refused_no_other_is_under_way(comm, monkeypatch):
    """DDP raises the first error, and its buckets are written to again."""
    hook, average = ddp_hook(comm, "dense"), ddp.DDPHook._average

    def late(hook, group, arrivals):
        time.sleep(0.2 * group.number)
        average(hook, group, arrivals)

    monkeypatch.setattr(ddp.DDPHook, "_average", late)
    futures = [hook(None, TorchBucket([torch.full((3,), value)], index, index == 1))
               for index, value in enumerate((torch.nan, 1.0))]
    with pytest.raises(NonFiniteGradient, match="is nan in step 0"):
        futures[0].wait()
    assert futures[1].done()
    hook.close()


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-10)])
def test_powersgd_is_pytorchs_own(comm, gloo, seed, dtype, tolerance):
    """Step by step, from the same first Q, with error feedback and warm start.

    Single precision has a seed of its own: a random Q may leave the two columns of P nearly parallel, where both
    programs lose digits, each its own.
    """
    seed = seed if dtype == np.float64 else 9
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    shapes, rank = [(12, 7), (9,), (6, 2, 3, 3), (5, 20)], 2
    state = PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2, min_compression_rate=1,
                          random_seed=seed)
    state.iter = 2  # its first two steps go dense
    torch.manual_seed(np.random.RandomState(seed).randint(1_000_000_000))  # as the hook draws its first Q
    columns = [int(np.prod(shape[1:])) for shape in shapes if len(shape) > 1]
    kind = torch.from_numpy(np.empty(0, dtype)).dtype
    q = np.concatenate([torch.randn(n, rank, dtype=kind).numpy().ravel() for n in columns])
    reducer = mpicomp.Reducer(comm, f"powersgd:rank={rank}")
    reducer.load_state_dict({**reducer.state_dict(), "exchange/q": q})
    rng = np.random.default_rng([seed, comm.rank])
    for _ in range(6):
        gradients = {f"g{i}": rng.standard_normal(shape).astype(dtype) for i, shape in enumerate(shapes)}
        bucket = TorchBucket([torch.tensor(one) for one in gradients.values()])
        powerSGD_hook(state, bucket).wait()
        ours = reducer.reduce(gradients)
        for (name, mine), theirs in zip(ours.items(), bucket.gradients(), strict=True):
            difference = np.linalg.norm(mine - theirs.numpy())
            assert difference <= tolerance * np.linalg.norm(mine), name


@pytest.mark.parametrize("scheme", ["dense", "powersgd:rank=2", "topk:density=0.1", "qsgd"])
def test_ddp_hook(comm, gloo, seed, scheme):
    """Dense, DDP's own result; with any scheme, ranks agree and error memory is in use."""
    from torch.nn.parallel import DistributedDataParallel as DDP

    class Used(Net):
        def __init__(self):
            super().__init__()
            del self.some, self.none

    torch.manual_seed(seed)
    model = Used()
    plain = DDP(copy.deepcopy(model), bucket_cap_mb=0.001)
    hooked = DDP(model, bucket_cap_mb=0.001)
    hook = ddp_hook(comm, scheme, model.named_parameters())
    hooked.register_comm_hook(None, hook)
    for x in batches(seed, comm.size)[:, comm.rank]:
        for one in (plain, hooked):
            optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
            optimizer.zero_grad()
            loss_of(one, x).backward()
            optimizer.step()
    assert_equal_on_all_ranks(comm, model)
    assert len(hook.reducers) > 1
    if scheme == "dense":
        assert_close(plain.module, model, rtol=1e-4, atol=1e-6)
    elif scheme != "qsgd":
        assert any(reducer.memory_norm() > 0 for reducer in hook.reducers.values())
    hook.close()


def test_ddp_hook_tells_of_nan(comm, gloo, seed):
    from torch.nn.parallel import DistributedDataParallel as DDP

    torch.manual_seed(seed)
    model = DDP(nn.Linear(3, 2))
    hook = ddp_hook(comm, "topk:k=1")
    model.register_comm_hook(None, hook)
    x = torch.full((2, 3), np.nan if comm.rank == 0 else 1.0)
    with pytest.raises(RuntimeError, match="is nan in step 0"):
        model(x).sum().backward()
    hook.close()


def test_a_traced_ddp_hook_exchanges_in_one_thread(comm, gloo, seed, folder):
    from torch.nn.parallel import DistributedDataParallel as DDP

    from mpicomp.trace import Recorder, open_trace

    torch.manual_seed(seed)
    model = DDP(nn.Sequential(*(nn.Linear(30, 30) for _ in range(3))), bucket_cap_mb=0.001)
    with Recorder(comm, str(folder / "run.h5")) as trace:
        hook = ddp_hook(comm, "topk:density=0.2", trace=trace)
        model.register_comm_hook(None, hook)
        for _ in range(3):
            model(torch.randn(4, 30)).sum().backward()
        assert len(hook.reducers) > 1
        hook.close()
    if comm.rank == 0:
        with open_trace(str(folder / "run.h5")) as recorded:
            events, step = recorded.events("rank", "kind", "t_start", "t_end"), recorded.code("kind", "step")
        for rank in range(comm.size):
            steps = [(begin, end) for who, kind, begin, end in zip(*events.values(), strict=True)
                     if (who, kind) == (rank, step)]
            assert len(steps) == 2 * len(hook.reducers)  # the first of three goes dense, untraced
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(sorted(steps)))


def test_a_trace_has_every_step(comm, seed, folder):
    """Recorded by the thread that exchanges."""
    from mpicomp.trace import Recorder, steps

    model = made(seed)
    with Recorder(comm, str(folder / "run.h5")) as trace:
        optimizer = wrap(model, comm, "topk:density=0.2", trace=trace)
        train(model, optimizer, batches(seed, comm.size, 3)[:, comm.rank])
        optimizer.close()
    if comm.rank == 0:
        found = steps(str(folder / "run.h5"))
        assert found["count"] == 3 and found["steps"]["ranks"].tolist() == [comm.size] * 3


@pytest.mark.parametrize(("damage", "said"), [
    (lambda state: state.update(reducers={}), "the state must be of buckets"),
    (lambda state: state["reducers"]["states"].pop(), "reducers, one a bucket, got"),
    (lambda state: state["reducers"]["states"][-1].pop("step"), "it lacks step"),
    (lambda state: state.update(param_groups=[]), "the optimizer does not take the saved state"),
])  # fmt: skip
def test_a_state_that_is_damaged_on_one_rank_is_refused_on_all(comm, seed, monkeypatch, damage, said):
    """And nothing of it is taken on any; the wrapped optimizer need not take back what a reducer refuses."""
    model, last = made(seed), comm.size - 1
    optimizer = wrap(model, comm, "topk:density=0.2")
    data = batches(seed, comm.size, 2)[:, comm.rank]
    train(model, optimizer, data[:1])
    state = copy.deepcopy(optimizer.state_dict())
    train(model, optimizer, data[1:])
    before = optimizer.param_groups[0]["lr"]
    state["param_groups"][0]["lr"] = before + 1
    if comm.rank == last:
        damage(state)
    loaded = []
    load = optimizer.optimizer.load_state_dict
    monkeypatch.setattr(optimizer.optimizer, "load_state_dict", lambda given: (loaded.append(given), load(given)))
    with pytest.raises(InvalidArgument, match=f"rank {last}: .*{said}"):
        optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == before and bool(loaded) == ("optimizer" in said)
    assert {reducer.step for reducer in optimizer.reducers.values()} == {2}
    optimizer.close()


def test_another_ranks_state_is_refused(comm, seed):
    model = made(seed)
    optimizer = wrap(model, comm, "topk:density=0.2")
    train(model, optimizer, batches(seed, comm.size, 1)[:, comm.rank])
    states = comm.allgather(optimizer.state_dict())
    if comm.size > 1:
        with pytest.raises(InvalidArgument, match=rf"rank 1: the state must be that of rank 1 of {comm.size}"):
            optimizer.load_state_dict(states[0])
    optimizer.load_state_dict(states[comm.rank])
    optimizer.close()


def test_fewer_ranks_resume_from_a_checkpoint(world, comm, folder, seed):
    """Their ``state_dict`` is refused; a checkpoint keeps the sum of the error memories."""
    model = made(seed)
    optimizer = wrap(model, comm, "topk:density=0.2")
    train(model, optimizer, batches(seed, comm.size, 2)[:, comm.rank])
    mpicomp.checkpoint.save(comm, folder, 2, common={"model": arrays_of(model)}, reducers=optimizer.reducers)
    sums = [comm.allreduce(reducer.state_dict()["memory/0/residual"]) for reducer in optimizer.reducers.values()]
    states = comm.allgather(optimizer.state_dict())
    optimizer.close()
    some = world.Split(int(world.rank == 0), world.rank)
    fewer, other = mpicomp.Comm(some), made(seed + 1)
    resumed = wrap(other, fewer, "topk:density=0.2")
    if comm.size > 1:
        with pytest.raises(InvalidArgument, match=f"of {fewer.size}, got that of rank 0 of {comm.size}.*checkpoint"):
            resumed.load_state_dict(states[0])
    saved = mpicomp.checkpoint.load(fewer, folder)
    saved.fill("model", arrays_of(other))
    assert bits(other) == bits(model)
    for (name, reducer), total in zip(resumed.reducers.items(), sums, strict=True):
        saved.restore(reducer, name)
        np.testing.assert_allclose(fewer.allreduce(reducer.state_dict()["memory/0/residual"]), total, atol=1e-6)
    train(other, resumed, batches(seed, comm.size, 1)[:, comm.rank])
    assert_equal_on_all_ranks(fewer, other)
    resumed.close()
    fewer.Free()
    some.Free()


def arrays_of(model):
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def test_mpi_of_mpi4py_will_do(seed):
    model = made(seed)
    optimizer = DistributedOptimizer(sgd(model), model.named_parameters(), MPI.COMM_WORLD, "topk:density=0.5")
    train(model, optimizer, batches(seed, MPI.COMM_WORLD.size, 2)[:, MPI.COMM_WORLD.rank])
    assert_equal_on_all_ranks(MPI.COMM_WORLD, model)
    optimizer.close()
