"""FSDP2 and HSDP with compressed collectives, over a Gloo mesh of the same ranks."""

import importlib.util

import needs_torch_mesh  # noqa: F401
import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import mpicomp
from mpicomp.errors import Disagreement, InvalidArgument, MissingExtra, NonFiniteGradient
from mpicomp.ops import ops_for
from mpicomp.ops.block_codes import block_codes_nbytes
from mpicomp.ops.device import CuPy
from mpicomp.reducer.shards import ShardReducer
from mpicomp.torch import compress
from mpicomp.torch.lanes import Lanes
from mpicomp.torch.mesh import NEWEST_NEEDED, ROOT, Mesh, Position

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("gloo")


class Layer(nn.Module):
    """Weights whose gradients are the factors given: integers, so that every order of sums has the same bits.

    Their first dimensions are multiples of few numbers of ranks: most shards are padded.
    """

    SHAPES = ((5, 4), (7,), (3, 2, 2), (1, 6))

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.ones(shape)) for shape in self.SHAPES)

    def forward(self, factors):
        return sum((weight * factor).sum() for weight, factor in zip(self.weights, factors, strict=True)
                   if factor is not None)


class Model(nn.Module):
    """Two layers, each a unit, and a weight that the root's unit has."""

    def __init__(self, layer=Layer):
        super().__init__()
        self.first, self.second = layer(), layer()
        self.scale = nn.Parameter(torch.ones(6, 3))

    def forward(self, factors):
        half = len(factors) // 2
        return self.first(factors[:half]) + self.second(factors[half:-1]) + (self.scale * factors[-1]).sum()


def mesh_of(comm, replicas):
    """A mesh of all ranks; of shards alone without ``replicas``."""
    if not replicas:
        return init_device_mesh("cpu", (comm.size,))
    return init_device_mesh("cpu", (replicas, comm.size // replicas), mesh_dim_names=("replicas", "shards"))


def sharded(comm, replicas=0, model=None, mesh=None, **options):
    model, mesh = Model() if model is None else model, mesh or mesh_of(comm, replicas)
    for layer in (model.first, model.second):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


SHAPES = [*Layer.SHAPES, *Layer.SHAPES, (6, 3)]


def factors(comm, seed, step, most=8, dtype=torch.float32):
    """This rank's, multiples of the number of ranks."""
    generator = torch.Generator().manual_seed(seed + 100 * step + comm.rank)
    return [comm.size * torch.randint(-most, most + 1, shape, generator=generator).to(dtype) for shape in SHAPES]


def step_of(model, own):
    model.zero_grad()
    model(own).backward()
    return [parameter.grad.to_local().clone() for parameter in model.parameters()]


def equal(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


WAYS = {"shards": 0, "one replica": 1, "replicas of two shards": 2, "replicas of one shard": -1}


@pytest.fixture(params=WAYS)
def replicas(request, comm):
    wanted = comm.size if WAYS[request.param] == -1 else WAYS[request.param]
    if wanted and comm.size % wanted:
        pytest.skip("no such mesh")
    if comm.size == 4 and wanted != 2:
        pytest.skip("fewer ranks show it")
    return wanted


@pytest.mark.parametrize("options", [{}, {"mp_policy": MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)},
                                     {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16,
                                                                        reduce_dtype=torch.float32)},
                                     {"reshard_after_forward": False}, {"offload_policy": CPUOffloadPolicy(False)},
                                     {"shard_placement_fn": lambda one: last_dimension(one)}],
                         ids=["float32", "bfloat16 gradients", "bfloat16 parameters", "unsharded", "offloaded",
                              "by columns"])
def test_dense_has_the_bits_of_plain_fsdp(comm, seed, replicas, options):
    plain, compressed = sharded(comm, replicas, **options), sharded(comm, replicas, **options)
    compression = compress(compressed, "dense")
    for step in range(3):
        own = factors(comm, seed, step, most=2)
        assert equal(step_of(plain, own), step_of(compressed, own)), step
    compression.close()
    own = factors(comm, seed, 3, most=2)
    assert equal(step_of(plain, own), step_of(compressed, own))


def last_dimension(parameter):
    """Shards of the last dimension, if they can be equal."""
    at = parameter.dim() - 1
    return Shard(at if parameter.shape[at] % torch.distributed.get_world_size() == 0 else 0)


def test_frozen_modules(comm, seed, replicas):
    """Their parameters are gathered as the others', and they have no reducer."""
    frozen = Model()
    frozen.first.requires_grad_(False)
    model, own = sharded(comm, replicas, frozen), factors(comm, seed, 0)
    compression = compress(model, "dense", gather="int8")
    assert list(compression.reducers) == [ROOT, "second"]
    expected = by_unit(model, step_of(sharded(comm, replicas), own))
    model(own).backward()
    for name, parameter in model.named_parameters():
        unit = name.partition(".")[0] if "." in name else ROOT
        assert parameter.grad is None if unit == "first" else torch.equal(parameter.grad.to_local(),
                                                                          expected[unit][name][0])
    compression.close()


@pytest.mark.parametrize("scheme", ["topk:density=0.3", "scalecom:chunk=4,beta=0.5", "int8", "onebit",
                                    "powersgd:rank=1", "randomk:density=0.3", "dgc:density=0.1,dense=1d"])
def test_replicas_average_by_any_scheme(comm, seed, scheme):
    """Expected: a Reducer of each unit's named shards, over the ranks that hold the same."""
    replicas = 2 if comm.size == 4 else comm.size
    shards = comm.size // replicas
    model, plain = sharded(comm, replicas), sharded(comm, mesh=mesh_of(comm, replicas)["shards"])
    compression = compress(model, scheme)
    across = mpicomp.Comm(comm.Split(comm.rank % shards, comm.rank // shards))
    reducers = {unit: mpicomp.Reducer(across, reducer.scheme) for unit, reducer in compression.reducers.items()}
    assert list(reducers) == [ROOT, "first", "second"]
    for step in range(3):
        own = factors(comm, seed, step)
        got, local = (by_unit(one, step_of(one, own)) for one in (model, plain))
        for unit, reducer in reducers.items():
            mean = reducer.reduce({name: padded(one, shape, shards) for name, (one, shape) in local[unit].items()})
            for name, (one, _) in got[unit].items():
                assert np.array_equal(one.numpy(), mean[name][: len(one)]), (step, name)
    assert compression.traffic.bytes_sent > 0
    compression.close()


def by_unit(model, gradients):
    """Gradients and whole shapes by name, by the unit that has them."""
    units = {ROOT: {}, "first": {}, "second": {}}
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        units[name.partition(".")[0] if "." in name else ROOT][name] = gradient, parameter.shape
    return units


def padded(shard, shape, shards):
    """A shard as FSDP lays it out: as many rows on all ranks."""
    out = np.zeros((-(-shape[0] // shards), *shape[1:]), np.float32)
    out[: len(shard)] = shard.numpy()
    return out


def laid_out(named, shards):
    """A unit's whole gradients as FSDP reduce-scatters them: rank by rank, each with its padded shards."""
    rows = [torch.nn.functional.pad(one, (0, 0) * (one.dim() - 1) + (0, -len(one) % shards)).reshape(shards, -1)
            for one in named.values()]
    return torch.cat(rows, dim=1).reshape(-1).numpy()


@pytest.mark.parametrize("scheme", ["int8", "int4:memory=residual", "onebit", "half:values=bfloat16"])
@pytest.mark.parametrize("policy", [None, torch.bfloat16, torch.float16], ids=str)
def test_shards_take_the_mean_of_codes(comm, seed, scheme, policy):
    """Expected: a ShardReducer of each unit's gradients."""
    model = sharded(comm, mp_policy=MixedPrecisionPolicy(reduce_dtype=policy))
    compression = compress(model, scheme)
    reducers = {unit: ShardReducer(comm, reducer.scheme) for unit, reducer in compression.reducers.items()}
    names = [name for name, _ in Model().named_parameters()]
    for step in range(2):
        own = factors(comm, seed, step, most=4)
        got = by_unit(model, step_of(model, own))
        given = by_unit(Model(), [dict(zip(ORDER, own, strict=True))[name] for name in names])
        for unit, reducer in reducers.items():
            vector = laid_out({name: one for name, (one, _) in given[unit].items()}, comm.size)
            mean, at = np.empty(len(vector) // comm.size, np.float32), 0
            reducer.reduce_scatter(before(vector, policy, comm.size), mean)
            mean = after(mean, policy, comm.size)
            for name, (one, shape) in got[unit].items():
                assert torch.equal(one.flatten(), mean[at : at + one.numel()]), (step, name)
                at += -(-shape[0] // comm.size) * shape[1:].numel()
    compression.close()


ORDER = [*(f"first.weights.{i}" for i in range(4)), *(f"second.weights.{i}" for i in range(4)), "scale"]


def before(vector, dtype, ranks):
    """Of float16 PyTorch divides before and after the sum: by 2 and the rest."""
    return (torch.from_numpy(vector).to(dtype or torch.float32) / (2 if dtype == torch.float16 else 1)).float().numpy()


def after(mean, dtype, ranks):
    mean = torch.from_numpy(mean)
    if dtype != torch.float16:
        return mean.to(dtype or torch.float32).float()
    return (mean.mul(ranks).to(dtype) / (ranks / 2)).float()


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.bias = nn.Linear(96, 200), nn.Linear(200, 96), nn.Parameter(torch.zeros(96))

    def forward(self, x):
        return self.second(torch.relu(self.first(x))) + self.bias


def wide(comm, seed, replicas=0, **options):
    torch.manual_seed(seed)
    return sharded(comm, replicas, Wide(), **options)


def trained(comm, model, optimizer, seed, steps, factor=1.0):
    for step in steps:
        x = torch.randn(4, 96, generator=torch.Generator().manual_seed(seed + 100 * step + comm.rank))
        optimizer.zero_grad()
        (model(x).square().mean() * factor).backward()
        optimizer.step()
    return [parameter.to_local().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("format", "share"), [("int8", 0.26), ("int4", 0.135)])
def test_bytes_on_the_wire(comm, seed, format, share):
    """Of gradients, once per step, and of parameters, of the layers twice: forward and backward."""
    model, sizes = wide(comm, seed), [96 * 200 + 200, 96 * 200 + 96, 96]
    optimizer, padding = torch.optim.SGD(model.parameters(), lr=0.1), 8 * comm.size
    for gather, times in (("dense", (1, 1, 1)), (format, (3, 3, 2))):
        compression = compress(model, format, gather=gather)
        trained(comm, model, optimizer, seed, range(1))
        before = compression.traffic
        trained(comm, model, optimizer, seed, range(1))
        sent = (compression.traffic - before).bytes_sent
        plain = 4 * sum(n * count for n, count in zip(sizes, times, strict=True)) * (comm.size - 1) / comm.size
        assert 0.5 * share * plain < sent <= share * plain + padding, (sent, plain)
        compression.close()


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
def test_gathered_parameters_are_the_rounded_ones_on_all_ranks(comm, seed, replicas, dtype):
    """The optimizer's own stay as they are."""
    model = wide(comm, seed, replicas, mp_policy=MixedPrecisionPolicy(param_dtype=dtype))
    kept = [parameter.to_local().clone() for parameter in model.parameters()]
    shards = comm.size // (replicas or 1)
    compression = compress(model, "int8", gather="int8")
    torch.manual_seed(seed)
    first = Wide().first
    named = {name: one.detach().to(dtype or torch.float32).float() for name, one in first.named_parameters()}
    values = laid_out(named, shards)
    read, n = values.copy(), len(values) // shards
    for start in range(0, len(values) if shards > 1 else 0, n):
        codes = np.empty(block_codes_nbytes(n, "int8"), np.uint8)
        ops_for(values).encode_blocks(values[start : start + n], "int8", codes)
        ops_for(values).decode_blocks(codes, "int8", read[start : start + n])
    model.first.unshard()
    rows = torch.from_numpy(read).reshape(shards, -1).split([-(-len(one) // shards) * one[0].numel()
                                                             for one in named.values()], dim=1)
    for (name, one), row in zip(named.items(), rows, strict=True):
        expected = row.reshape(-1, *one.shape[1:])[: len(one)].to(dtype or torch.float32)
        assert torch.equal(model.first.get_parameter(name).detach(), expected)
    model.first.reshard()
    assert equal(kept, [parameter.to_local() for parameter in model.parameters()])
    compression.close()


@pytest.mark.parametrize("scheme", ["int4:memory=residual", "topk:density=0.05", "powersgd:rank=1"])
def test_resumes_bit_for_bit_from_a_distributed_checkpoint(comm, seed, replicas, scheme, tmp_path_factory):
    if not replicas and not scheme.startswith("int4"):
        pytest.skip("needs replicas")

    def made():
        model = wide(comm, seed, replicas)
        return model, torch.optim.Adam(model.parameters(), lr=0.01), compress(model, scheme)

    def state(model, optimizer, compression):
        own, of_optimizer = get_state_dict(model, optimizer)
        return {"model": own, "optimizer": of_optimizer, "compression": compression}

    folder = comm.bcast(str(tmp_path_factory.mktemp("saved")) if comm.rank == 0 else None)
    model, optimizer, compression = made()
    trained(comm, model, optimizer, seed, range(3))
    dcp.save(state(model, optimizer, compression), checkpoint_id=folder)
    expected = trained(comm, model, optimizer, seed, range(3, 6))
    resumed, fresh, other = made()
    trained(comm, resumed, fresh, seed + 1, range(1))  # elsewhere; makes the optimizer's state
    loaded = state(resumed, fresh, other)
    dcp.load(loaded, checkpoint_id=folder)
    set_state_dict(resumed, fresh, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    assert equal(trained(comm, resumed, fresh, seed, range(3, 6)), expected)
    assert [one.step for one in other.reducers.values()] == [6, 6, 6]
    for one in (compression, other):
        one.close()


def test_states_of_another_rank_model_or_scheme(comm, seed):
    """One rank's is; all refuse."""
    compression, last = compress(wide(comm, seed), "int8:memory=residual"), comm.rank == comm.size - 1
    other, more = compress(wide(comm, seed), "int4:memory=residual"), compress(sharded(comm), "int8:memory=residual")
    own, (key,) = compression.state_dict(), compression.state_dict()
    assert key == f"replica 0 shard {comm.rank}"
    for state, said in (({}, "must have 'replica 0 shard"), (None, "must have 'replica 0 shard"),
                        (other.state_dict(), "must have scheme=int8"), (more.state_dict(), "of parameters sharded as")):
        with pytest.raises(InvalidArgument, match=f"rank {comm.size - 1}: .*{said}"):
            compression.load_state_dict(state if last else own)
    compression.load_state_dict(own)
    for one in (compression, other, more):
        one.close()


def test_a_state_of_another_mesh(comm, seed):
    some = compress(wide(comm, seed, replicas=comm.size), "topk")
    others = compress(wide(comm, seed, replicas=1), "topk")
    with pytest.raises(InvalidArgument, match=rf"of 1 replicas of {comm.size} shards, got {comm.size} of 1: resume"):
        others.load_state_dict({next(iter(others.state_dict())): next(iter(some.state_dict().values()))})
    for one in (some, others):
        one.close()


# -- what is left to the user, and what is refused


def test_ranks_of_mpi_in_another_order_than_pytorchs(comm, seed):
    """Communicators follow the coordinates of the mesh."""
    turned = mpicomp.Comm(comm.Split(0, -comm.rank))
    for replicas in (0, comm.size):
        plain, model = sharded(comm, replicas), sharded(comm, replicas)
        compression, own = compress(model, "dense", comm=turned), factors(comm, seed, 0)
        assert equal(step_of(plain, own), step_of(model, own))
        compression.close()
    turned.Free()


def test_processes_that_are_not_the_meshs(comm, world):
    alone, model = mpicomp.Comm(world.Split(comm.rank, 0)), sharded(comm)
    with pytest.raises(InvalidArgument, match=r"comm must have all processes of the model's mesh.* it lacks"):
        compress(model, "int8", comm=alone)
    alone.Free()
    single = DeviceMesh("cpu", [comm.rank])
    model = sharded(comm, mesh=single)  # a mesh for each rank: communicators of one rank
    compression, own = compress(model, "int8"), factors(comm, 0, 0)
    assert all(torch.equal(gradient, dict(zip(ORDER, own, strict=True))[name]) for (name, _), gradient in
               zip(model.named_parameters(), step_of(model, own), strict=True))
    compression.close()


def refused(comm, said, model, *arguments, **options):
    """All ranks raise the error."""
    with pytest.raises((InvalidArgument, Disagreement), match=said):
        compress(model, *arguments, **options)


def test_models_that_are_not_sharded(comm):
    refused(comm, "must be sharded by torch.distributed.fsdp.fully_shard before compress, got Model", Model(), "int8")
    refused(comm, "got Model: call fully_shard first", Model() if comm.rank == comm.size - 1 else sharded(comm), "int8")
    frozen = sharded(comm, model=Model().requires_grad_(False))
    refused(comm, "must have a parameter that requires gradients", frozen, "int8")


def test_a_second_compression(comm, seed):
    for replicas in (0, comm.size):
        model = sharded(comm, replicas)
        first = compress(model, "int8")
        refused(comm, "compress a model once, and close", model, "int8")
        first.close()
        compress(model, "int8").close()
    model.set_all_reduce_hook(print)
    refused(comm, "the model has an all-reduce hook", model, "int8")


@pytest.mark.parametrize(("replicas", "scheme", "options", "said"), [
    (0, "topk", {}, "by exchange=pieces .*, got topk"), (0, "int8", {"measures": 1}, "the options nonfinite, trace"),
    (0, "int8", {"gather": "int9"}, "gather must be one of dense, int8"), (1, "auto", {}, "need one scheme, got auto"),
    (0, "int8", {"nonfinite": "hide"}, "nonfinite must be one of"), (1, "topk:nodes=yes", {}, "need nodes=no"),
    (0, "int8", {"grad_scaler": 2.0}, "grad_scaler must be a GradScaler, got float"),
    (1, "topk", {"densities": {"third": 0.5}}, "must name parameters of the model, got third"),
    (1, "topk", {"size": 3}, "no option size"),
])  # fmt: skip
def test_arguments_out_of_range_on_one_rank(comm, replicas, scheme, options, said):
    here = comm.rank == comm.size - 1
    refused(comm, f"rank {comm.size - 1}: .*{said}", sharded(comm, replicas), scheme if here else "int8",
            **options if here else {})


def test_arguments_that_differ(comm):
    last = comm.rank == comm.size - 1
    refused(comm, "scheme=int", sharded(comm), "int8" if last else "int4")
    refused(comm, "gather=", sharded(comm), "int8", gather="int8" if last else "dense")
    model = Model()
    model.scale = nn.Parameter(torch.ones(60 if last else 6, 3))
    refused(comm, r"scale \[", sharded(comm, model=model), "int8")


def test_dtypes_and_meshes_that_cannot(comm):
    complex_ = Model()
    complex_.scale = nn.Parameter(torch.ones(6, 3, dtype=torch.complex64))
    refused(comm, "gradients of the model must be reduced in one of .*, got torch.complex64",
            sharded(comm, model=complex_))
    mixed = Model()
    mixed.first.weights[0] = nn.Parameter(torch.ones(5, 4, dtype=torch.float64))
    refused(comm, "gather=int8 needs parameters of one floating-point dtype", sharded(comm, model=mixed), gather="int8")
    model = Model()
    fully_shard(model.first, mesh=mesh_of(comm, comm.size))
    refused(comm, "must be sharded over one mesh", fully_shard(model, mesh=mesh_of(comm, 0)))


def test_parameters_from_another_mesh(comm):
    if comm.size < 4:
        pytest.skip("no such mesh")
    refused(comm, "gather=int8 needs reshard_after_forward=True or False, got a number",
            sharded(comm, reshard_after_forward=2), gather="int8")


def test_a_model_sharded_after_compress(comm, seed):
    for replicas in (0, comm.size):
        model = Model()
        fully_shard(model.first, mesh=mesh_of(comm, replicas))
        compression = compress(model, "int8")
        fully_shard(model, mesh=mesh_of(comm, replicas))
        with pytest.raises(InvalidArgument, match="modules around first were sharded after compress"):
            model(factors(comm, seed, 0)).backward()
        compression.close()


def test_nonfinite_gradients(comm, seed):
    """One element of one rank's gradient: all ranks refuse the unit's step, those of other shards as well."""
    for replicas, scheme in ((0, "int8:memory=residual"), (comm.size if comm.size < 4 else 2, "topk:density=0.5")):
        own, bad = factors(comm, seed, 0), factors(comm, seed, 1)
        if comm.rank == comm.size - 1:
            bad[-1][0, 0] = np.inf
        for nonfinite in ("raise", "skip"):
            model = sharded(comm, replicas)
            compression = compress(model, scheme, nonfinite=nonfinite)
            step_of(model, own)
            before = compression.reducers[ROOT].memory_norm()
            if nonfinite == "raise":
                with pytest.raises(NonFiniteGradient, match="error memory is untouched"):
                    step_of(model, bad)
            else:
                units = by_unit(model, step_of(model, bad))
                assert not units[ROOT]["scale"][0].any()
                assert any(one.any() for one, _ in units["first"].values())
                assert compression.reducers[ROOT].stats.skipped
            assert compression.reducers[ROOT].memory_norm() == before
            compression.close()


@pytest.mark.parametrize("accumulated", [False, True], ids=["", "accumulated"])
@pytest.mark.parametrize("at", [0, -1], ids=["first", "root"])
def test_goes_on_after_a_refused_step(comm, seed, replicas, at, accumulated):
    """The gradients are those of a twin without that step: no unit adds to what the refused step left."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model, twin = (sharded(comm, replicas, **({"mp_policy": policy} if accumulated else {})) for _ in range(2))
    compressions, bad = [compress(one, "dense") for one in (model, twin)], factors(comm, seed, 1)
    if comm.rank == comm.size - 1:
        bad[at].view(-1)[0] = np.inf
    for step in range(3):
        if step == 1:
            if accumulated:
                model.set_requires_gradient_sync(False)
                model(factors(comm, seed, 3)).backward()
                model.set_requires_gradient_sync(True)
            with pytest.raises(NonFiniteGradient):
                model(bad).backward()
        own = factors(comm, seed, step)
        assert equal(step_of(model, own), step_of(twin, own)), step
    for one in compressions:
        one.close()


def test_goes_on_after_a_step_refused_amid_backward(comm, seed, replicas):
    """The second layer's gradients come before the first's."""
    model, twin = wide(comm, seed, replicas), wide(comm, seed, replicas)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.1) for one in (model, twin)]
    compressions = [compress(one, "dense") for one in (model, twin)]
    for step in range(3):
        if step == 1:
            with pytest.raises(NonFiniteGradient):
                trained(comm, model, optimizers[0], seed, range(1), np.inf if comm.rank == comm.size - 1 else 1.0)
        assert equal(*(trained(comm, one, optimizer, seed, range(step, step + 1))
                       for one, optimizer in zip((model, twin), optimizers, strict=True))), step
    for one in compressions:
        one.close()


def test_a_shard_that_overflows_on_the_wire(comm, seed):
    """All ranks refuse the step, those of other shards as well."""
    model, own = sharded(comm, 2 if comm.size == 4 else comm.size), factors(comm, seed, 0)
    own[-1][-1, 0] = 1e6
    compression = compress(model, "half:memory=residual")
    with pytest.raises(NonFiniteGradient, match="values=float16 overflowed"):
        step_of(model, own)
    assert compression.reducers[ROOT].memory_norm() == 0
    compression.close()


@pytest.mark.parametrize(("scheme", "nonfinite"), [("int8:memory=residual", "raise"), ("onebit", "allow")])
def test_a_scaler_leaves_out_a_step(comm, seed, replicas, scheme, nonfinite):
    """One rank's gradients overflow: every rank's scaler finds it, parameters and error memory stay as they are."""
    model = wide(comm, seed, replicas)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compression = compress(model, scheme, grad_scaler=scaler, nonfinite=nonfinite)

    def step(factor):
        x = torch.full((4, 96), factor)
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        return [parameter.to_local().clone() for parameter in model.parameters()]

    kept = step(1.0)
    norms = [reducer.memory_norm() for reducer in compression.reducers.values()]
    assert equal(step(1e19 if comm.rank == comm.size - 1 else 1.0), kept)
    assert scaler.get_scale() == 2.0**19
    skipped = [reducer.stats.skipped for reducer in compression.reducers.values()]
    assert any(skipped)
    for reducer, norm, left_out in zip(compression.reducers.values(), norms, skipped, strict=True):
        assert reducer.memory_norm() == norm or not left_out
    assert not equal(step(1.0), kept)
    compression.close()


def test_scales_do_not_change_what_schemes_see(comm, seed, replicas):
    """Powers of two: the same bits as without a scaler."""
    results = []
    for init in (1.0, 2.0**15):
        model, scaler = wide(comm, seed, replicas), torch.amp.GradScaler("cpu", init_scale=init, growth_interval=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        compression = compress(model, "int4:memory=residual", grad_scaler=scaler)
        for step in range(3):
            x = torch.randn(4, 96, generator=torch.Generator().manual_seed(seed + 100 * step + comm.rank))
            optimizer.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append([parameter.to_local().clone() for parameter in model.parameters()])
        compression.close()
    assert equal(*results)


def test_accumulated_gradients(comm, seed, replicas):
    plain, model = sharded(comm, replicas), sharded(comm, replicas)
    compression = compress(model, "dense")
    for one in (plain, model):
        one.set_requires_gradient_sync(False)
        one(factors(comm, seed, 0)).backward()
        one.set_requires_gradient_sync(True)
        one(factors(comm, seed, 1)).backward()
        one(factors(comm, seed, 2)).backward()
    assert equal(*([parameter.grad.to_local() for parameter in one.parameters()] for one in (plain, model)))
    model.set_requires_all_reduce(False)
    with pytest.raises(InvalidArgument, match=r"set_requires_all_reduce\(False\) has no effect with compress"):
        model(factors(comm, seed, 3)).backward()
    compression.close()


def test_a_divisor_of_ones_own(comm, seed, replicas):
    plain, model = sharded(comm, replicas), sharded(comm, replicas)
    compression, own = compress(model, "dense"), factors(comm, seed, 0)
    for one in (plain, model):
        for module in (one, one.first, one.second):
            module.set_gradient_divide_factor(2.0 * comm.size)
            module.set_force_sum_reduction_for_comms(True)
    for expected, gradient in zip(step_of(plain, own), step_of(model, own), strict=True):
        assert torch.allclose(expected, gradient, rtol=1e-5, atol=1e-6)
    compression.close()


def test_unused_parameters(comm, seed, replicas):
    some = factors(comm, seed, 0)
    some[1] = None
    for zeros in (False, True):
        plain, model = sharded(comm, replicas), sharded(comm, replicas)
        compression = compress(model, "dense")
        for one in (plain, model):
            one.set_reduce_scatter_unused_params(zeros)
        if zeros:
            assert equal(step_of(plain, some), step_of(model, some))
        else:
            with pytest.raises(InvalidArgument, match=r"of all 4 parameters of first, .*unused_params\(True\)"):
                model(some).backward()
        compression.close()


def test_a_module_named_model(comm, seed):
    model = Model()
    model.model = nn.Linear(3, 4)
    fully_shard(model.model, mesh=mesh_of(comm, 0))
    compression = compress(sharded(comm, model=model), "int8")
    assert list(compression.reducers) == [ROOT, "first", "second", "model"]
    compression.close()


@pytest.mark.parametrize("make", [Lanes, lambda comm: Mesh(comm, Position(comm.rank, [*range(comm.size)], [comm.rank],
                                                                          False))], ids=["lanes", "mesh"])
def test_errors_of_any_class_free_the_communicators(comm, make):
    made = make(comm)
    own = made.control if isinstance(made, Lanes) else made.whole
    with pytest.raises(TypeError), made.closed_if_refused():
        raise TypeError
    assert own == MPI.COMM_NULL


def test_an_older_pytorch_on_one_rank(comm, monkeypatch):
    model = sharded(comm)
    if comm.rank == comm.size - 1:
        monkeypatch.delattr(FSDPModule, NEWEST_NEEDED)
    refused(comm, f"rank {comm.size - 1}: compress needs PyTorch 2.13 or newer, got", model, "int8")


@pytest.mark.skipif(importlib.util.find_spec("cupy") is not None, reason="CuPy is there")
def test_cuda_without_cupy(comm, monkeypatch):
    """One rank's parameters are on a GPU, as far as it can be pretended."""
    model, real = sharded(comm), torch.empty
    if comm.rank == comm.size - 1:
        monkeypatch.setattr(model._get_fsdp_state()._fsdp_param_group, "device", torch.device("cuda"))
        monkeypatch.setattr(torch, "empty", lambda *size, device=None, **options: real(*size, **options))
        for module in ("flat", "mesh"):
            monkeypatch.setattr(f"mpicomp.torch.{module}.device_of", lambda array: CuPy())
    with pytest.raises(MissingExtra, match=rf"rank {comm.size - 1}: arrays in CUDA memory need CuPy: pip install"):
        compress(model, "int8")
