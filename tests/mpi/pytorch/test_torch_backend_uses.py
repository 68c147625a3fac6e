"""PyTorch's own parallel training over backend mpicomp: DDP, FSDP2, DTensor, checkpoints, compiled steps, our hooks."""

import os

import pytest
from mpi4py import MPI

if MPI.COMM_WORLD.size not in (2, 3, 4):
    pytest.skip("runs on 2 to 4 ranks", allow_module_level=True)
torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'mpicomp[torch-test]'")

import shutil  # noqa: E402

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

from mpicomp.errors import Disagreement  # noqa: E402
from mpicomp.torch import DistributedOptimizer, ddp_hook  # noqa: E402

torch.set_num_threads(1)
# PyTorch 2.13 warns of names that earlier versions need
pytestmark = [pytest.mark.usefixtures("group"), pytest.mark.filterwarnings("ignore::FutureWarning")]


@pytest.fixture(scope="module")
def gloo(group, comm):
    """A group of PyTorch's own backend."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    return dist.new_group(backend="gloo")


class Weighted(nn.Module):
    """Its gradients are small integers times the number of ranks: every order of sums has the same bits."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(n, 6, dtype=dtype)) for n in (12, 30, 24, 60))

    def forward(self, factors):
        return sum((one * factor).sum() for one, factor in zip(self.weights, factors, strict=True))


def factors(model, comm, seed):
    generator = torch.Generator().manual_seed(seed + comm.rank)
    return [comm.size * torch.randint(-8, 9, one.shape, generator=generator).to(one) for one in model.parameters()]


def layers(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 12))


def equal_on_ranks(tensors):
    """The same bits on every rank."""
    for one in tensors:
        first = one.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, one.detach())


# -- DDP


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}], ids=str)
def test_ddp_has_the_bits_of_gloo(comm, gloo, seed, dtype, options):
    found = []
    for group in (None, gloo):
        model = DDP(Weighted(dtype), process_group=group, bucket_cap_mb=1e-3, **options)
        for step in range(3):
            model.zero_grad()
            model(factors(model.module, comm, seed + 10 * step)).backward()
        found.append([one.grad.clone() for one in model.parameters()])
    assert all(map(torch.equal, *found))
    equal_on_ranks(found[0])


def test_ddp_begins_with_rank_0s_parameters_and_trains(comm):
    model = DDP(layers(seed=comm.rank))
    equal_on_ranks(model.parameters())
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    x = torch.randn(16, 12, generator=torch.Generator().manual_seed(comm.rank))
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = (model(x) - x).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    equal_on_ranks(model.parameters())


def test_hooks_of_ddp(comm, seed):
    """PyTorch's own, of which PowerSGD starts all-reduces in callbacks; and ours."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
    from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

    ours = ddp_hook(dist.group.WORLD.comm, "dense")
    hooks = {"fp16": (None, fp16_compress_hook), "ours": (None, ours),
             "powersgd": (PowerSGDState(None, 2, start_powerSGD_iter=2, min_compression_rate=0.1), powerSGD_hook)}
    for hook in hooks.values():
        model = DDP(Weighted(), bucket_cap_mb=1e-3)
        model.register_comm_hook(*hook)
        for step in range(4):
            model.zero_grad()
            model(factors(model.module, comm, seed + 10 * step)).backward()
        equal_on_ranks([one.grad for one in model.parameters()])
    ours.close()


def test_distributed_optimizer_on_the_groups_communicator(comm, seed):
    model = layers()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), model.named_parameters(),
                                     dist.group.WORLD.comm, "topk:density=0.5")
    for step in range(3):
        optimizer.zero_grad()
        x = torch.randn(4, 12, generator=torch.Generator().manual_seed(seed + comm.rank + 10 * step))
        model(x).pow(2).sum().backward()
        optimizer.step()
    equal_on_ranks(model.parameters())
    optimizer.close()


def test_a_failing_bucket(comm, group):
    """DDP raises the error of an all-reduce in C++, with our text."""
    model = DDP(layers(), bucket_cap_mb=1e-3)
    model(torch.ones(2, 12)).sum().backward()
    original = group._turns.start

    def start(function, *given):
        def fail():
            raise Disagreement("ranks disagree on purpose")

        return original(fail, *given)

    group._turns.start = start
    try:
        with pytest.raises(RuntimeError, match="ranks disagree on purpose"):
            model(torch.ones(2, 12)).sum().backward()
    finally:
        del group._turns.start


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compiled_ddp(comm, backend):
    if backend == "inductor" and shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    x = torch.randn(8, 12, generator=torch.Generator().manual_seed(comm.rank))
    gradients = []
    for compiled in (False, True):
        model = DDP(layers())
        run = torch.compile(model, backend=backend) if compiled else model
        for _ in range(2):
            model.zero_grad()
            run(x).pow(2).mean().backward()
        gradients.append([one.grad.clone() for one in model.parameters()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    equal_on_ranks(gradients[1])


# -- sharded


def sharded(mesh, model, **options):
    from torch.distributed.fsdp import fully_shard

    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def mesh_over(backend, comm, shape=None):
    from torch.distributed.device_mesh import init_device_mesh

    shape = shape or (comm.size,)
    names = ("replicate", "shard")[-len(shape) :]
    return init_device_mesh("cpu", shape, mesh_dim_names=names, backend_override=dict.fromkeys(names, backend))


def trained(model, comm, steps=4):
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(8, 12, generator=torch.Generator().manual_seed(10 * step + comm.rank))
        model(x).pow(2).mean().backward()
        optimizer.step()
    return [one.full_tensor().detach() for one in model.parameters()], optimizer


def test_fsdp2(comm):
    """Trained shards are those of DDP, and the same over Gloo."""
    found = [trained(sharded(mesh_over(backend, comm), layers()), comm)[0] for backend in ("mpicomp", "gloo")]
    equal_on_ranks(found[0])
    model = DDP(layers())
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(4):
        optimizer.zero_grad()
        x = torch.randn(8, 12, generator=torch.Generator().manual_seed(10 * step + comm.rank))
        model(x).pow(2).mean().backward()
        optimizer.step()
    for mine, gloos, whole in zip(*found, model.parameters(), strict=True):
        torch.testing.assert_close(mine, gloos)
        torch.testing.assert_close(mine, whole.detach())


def test_fsdp2_with_half_precision_gradients(comm):
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    whole, _ = trained(sharded(mesh_over("mpicomp", comm), layers(), mp_policy=policy), comm)
    equal_on_ranks(whole)


def test_hybrid_shards(comm):
    if comm.size != 4:
        return
    found = [trained(sharded(mesh_over(backend, comm, (2, 2)), layers()), comm)[0] for backend in ("mpicomp", "gloo")]
    for mine, gloos in zip(*found, strict=True):
        torch.testing.assert_close(mine, gloos)
    equal_on_ranks(found[0])


def test_dtensor(comm, seed):
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = mesh_over("mpicomp", comm)
    whole = torch.arange(float(12 * 24)).view(12, 24)
    rows = distribute_tensor(whole, mesh, [Shard(0)])
    assert torch.equal(rows.to_local(), torch.chunk(whole, comm.size)[comm.rank])
    columns = rows.redistribute(mesh, [Shard(1)])
    assert torch.equal(columns.to_local(), torch.chunk(whole, comm.size, dim=1)[comm.rank])
    assert torch.equal(columns.redistribute(mesh, [Replicate()]).to_local(), whole)
    from torch.distributed.tensor import DTensor

    parts = DTensor.from_local(whole + comm.rank, mesh, [Partial()])
    total = comm.size * whole + sum(range(comm.size))
    assert torch.equal(parts.redistribute(mesh, [Replicate()]).to_local(), total)
    assert torch.equal(parts.redistribute(mesh, [Shard(0)]).to_local(), torch.chunk(total, comm.size)[comm.rank])
    assert torch.equal((columns @ rows.t().redistribute(mesh, [Shard(0)])).full_tensor(), whole @ whole.t())


def test_distributed_checkpoint(comm, folder):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    def state_of(model, optimizer):
        states = get_state_dict(model, optimizer)
        return {"model": states[0], "optimizer": states[1]}

    model = sharded(mesh_over("mpicomp", comm), layers())
    whole, optimizer = trained(model, comm)
    dcp.save(state_of(model, optimizer), checkpoint_id=str(folder / "state"))
    other = sharded(mesh_over("mpicomp", comm), layers(seed=2))
    _, fresh = trained(other, comm, steps=1)
    state = state_of(other, fresh)
    dcp.load(state, checkpoint_id=str(folder / "state"))
    set_state_dict(other, fresh, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for one, wanted in zip(other.parameters(), whole, strict=True):
        assert torch.equal(one.full_tensor(), wanted)


def test_functional_collectives(comm):
    """Those of compiled code, which find the group by its name."""
    from torch.distributed import _functional_collectives as functional

    group = dist.group.WORLD
    x = torch.full((comm.size, 2), float(comm.rank))
    total = float(sum(range(comm.size)))
    assert torch.equal(functional.all_reduce(x, "sum", group), torch.full_like(x, total))
    assert functional.all_gather_tensor(x, 0, group)[:: comm.size, 0].tolist() == list(map(float, range(comm.size)))
    assert functional.reduce_scatter_tensor(x, "sum", 0, group).tolist() == [[total, total]]
    many = functional.all_reduce_coalesced([x, x.int()], "max", group)
    assert [one.max().item() for one in many] == [comm.size - 1] * 2
    assert functional.all_to_all_single(x, None, None, group)[:, 0].tolist() == list(map(float, range(comm.size)))
    assert functional.broadcast(x, 0, group).max().item() == 0
