"""The DDP hook: error memory belongs to parameters, in whatever buckets, order and memory layout DDP has them."""

import io
import time

import needs_torch  # noqa: F401
import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import mpicomp
from mpicomp.errors import Disagreement, InvalidArgument
from mpicomp.torch import ddp, ddp_hook

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("gloo")
CAP = 200e-6  # MB: two or three of the layers below
# What DDP is made with -> how many steps go dense
WAYS = {
    "rebuilt after the first step": ({}, 1),
    "rebuilt after the second step": ({"static_graph": True}, 2),
    "never rebuilt": ({"find_unused_parameters": True}, 2),
    "gradients are views": ({"gradient_as_bucket_view": True}, 1),
    "static views": ({"static_graph": True, "gradient_as_bucket_view": True}, 2),
}


class Weighted(nn.Module):
    """Its gradients are the factors that it is given: small integers, so that every order of sums has the same bits.

    Six weights of one shape, and three in other memory layouts than C order.
    """

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.equal = nn.ParameterList(nn.Parameter(torch.ones(4, 4)) for _ in range(6))
        self.turned = nn.Parameter(torch.ones(5, 6).t())
        self.square = nn.Parameter(torch.ones(5, 5).t())
        self.image = nn.Parameter(torch.ones(4, 3, 2, 2).to(memory_format=torch.channels_last))
        self.to(dtype)

    def forward(self, factors):
        return sum((one * factor).sum() for one, factor in zip(self.parameters(), factors, strict=True))


def factors(model, comm, seed, step):
    """This rank's, multiples of the number of ranks."""
    generator = torch.Generator().manual_seed(seed + 100 * step + comm.rank)
    return [comm.size * torch.randint(-8, 9, one.shape, generator=generator).to(one) for one in model.parameters()]


def hooked(model, comm, scheme, cap=CAP, named=True, **options):
    wrapped = DDP(model, bucket_cap_mb=cap, **options)
    hook = ddp_hook(comm, scheme, model.named_parameters() if named else ())
    wrapped.register_comm_hook(None, hook)
    return wrapped, hook


def step_of(wrapped, own):
    wrapped.zero_grad()
    wrapped(own).backward()
    return [parameter.grad.clone() for parameter in wrapped.module.parameters()]


@pytest.mark.parametrize("named", [True, False], ids=["named", "nameless"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_error_memory_stays_with_its_parameter(comm, seed, way, dtype, named):
    """Expected: the result of a Reducer of the gradients by name, which knows no buckets."""
    options, dense = WAYS[way]
    model = Weighted(dtype)
    wrapped, hook = hooked(model, comm, "topk:density=0.2", named=named, **options)
    reference, plain = mpicomp.Reducer(comm, "topk:density=0.2"), mpicomp.Reducer(comm, "dense")
    for step in range(6):
        own = factors(model, comm, seed, step)
        reducer = plain if step < dense else reference
        expected = reducer.reduce([one.float().numpy() for one in own])
        for gradient, mean in zip(step_of(wrapped, own), expected, strict=True):
            assert torch.equal(gradient, torch.from_numpy(mean).to(dtype)), step
    assert len(hook.reducers) > 1
    hook.close()


@pytest.mark.parametrize("scheme", ["powersgd:rank=1", "randomk:density=0.3", "topk-global:density=0.1"])
def test_schemes_see_weights_in_the_order_of_their_shape(comm, seed, scheme):
    """Matrices of transposed and channels_last weights, and random coordinates, are those of the Reducer."""
    model = Weighted()
    wrapped, hook = hooked(model, comm, scheme, cap=25)
    reference = mpicomp.Reducer(comm, scheme)
    names = [name for name, _ in model.named_parameters()]
    for step in range(5):
        own = factors(model, comm, seed, step)
        got = dict(zip(names, step_of(wrapped, own), strict=True))
        if step == 0:
            continue
        given = dict(zip(names, own, strict=True))
        (group,) = hook.state_dict()["layout"]
        mean = reference.reduce({name: given[name].numpy() for name in group})
        for name in group:
            assert torch.equal(got[name], torch.from_numpy(mean[name])), name
    hook.close()


@pytest.mark.parametrize(("way", "scheme"), [
    *((way, "topk-global:density=0.1") for way in WAYS),
    *((next(iter(WAYS)), scheme) for scheme in ("topk:density=0.2", "powersgd:rank=1", "dgc:density=0.1,dense=1d",
                                                "randomk:density=0.3", "accordion:interval=2")),
])
def test_resumes_bit_for_bit(comm, seed, way, scheme):
    """Every rank goes on from its own file, also with other buckets of DDP's."""
    options, dense = WAYS[way]
    wrapped, hook = hooked(Weighted(), comm, scheme, **options)
    for step in range(dense + 1):
        step_of(wrapped, factors(wrapped.module, comm, seed, step))
    file = io.BytesIO()
    torch.save(hook.state_dict(), file)
    resumed, fresh = hooked(Weighted(), comm, scheme, cap=CAP / 2, **options)
    fresh.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for step in range(dense + 1, dense + 5):
        own = factors(wrapped.module, comm, seed, step)
        for a, b in zip(step_of(wrapped, own), step_of(resumed, own), strict=True):
            assert torch.equal(a, b), step
    for one in (hook, fresh):
        one.close()


def test_a_state_goes_back_into_its_own_hook(comm, seed):
    wrapped, hook = hooked(Weighted(), comm, "topk:density=0.2")
    runs = []
    for step in range(3):
        step_of(wrapped, factors(wrapped.module, comm, seed, step))
    state = hook.state_dict()
    for _ in range(2):
        runs.append([step_of(wrapped, factors(wrapped.module, comm, seed, step)) for step in (3, 4)])
        hook.load_state_dict(state)
    assert all(torch.equal(a, b) for one, other in zip(*runs, strict=True) for a, b in zip(one, other, strict=True))
    hook.close()


@pytest.mark.parametrize("loads", [False, True])
def test_a_state_follows_a_backward_that_fails(comm, seed, monkeypatch, loads):
    """Saved, it is the same on all ranks; loaded, it takes no communicator from what is under way."""
    wrapped, hook = hooked(Weighted(), comm, "topk:density=0.2")
    for step in range(3):
        step_of(wrapped, factors(wrapped.module, comm, seed, step))
    saved, answer = hook.state_dict(), ddp.DDPHook._answer

    def late(*given):
        time.sleep(0.3 * (comm.rank > 0))
        answer(*given)

    def fail(gradient):
        raise RuntimeError("no memory")

    monkeypatch.setattr(ddp.DDPHook, "_answer", late)
    wrapped.module.equal[1].register_hook(fail)
    with pytest.raises(RuntimeError, match="no memory"):
        step_of(wrapped, factors(wrapped.module, comm, seed, 3))
    if loads:
        hook.load_state_dict(saved)
    steps = [state["step"] for state in hook.state_dict()["states"]]
    assert comm.allgather(steps) == [steps] * comm.size
    hook.close()


def test_a_state_of_no_step_begins_anew(comm, seed):
    wrapped, hook = hooked(Weighted(), comm, "topk:density=0.2")
    hook.load_state_dict(hook.state_dict())
    own = factors(wrapped.module, comm, seed, 0)
    expected = mpicomp.Reducer(comm, "dense").reduce([one.numpy() for one in own])
    for gradient, mean in zip(step_of(wrapped, own), expected, strict=True):
        assert torch.equal(gradient, torch.from_numpy(mean))
    hook.close()


def trained(comm, seed, named=True):
    wrapped, hook = hooked(Weighted(), comm, "topk:density=0.2", named=named)
    for step in range(3):
        step_of(wrapped, factors(wrapped.module, comm, seed, step))
    return wrapped, hook


def test_a_state_needs_names(comm, seed):
    _, hook = trained(comm, seed, named=False)
    with pytest.raises(InvalidArgument, match=r"needs the names of all parameters: .*model\.named_parameters\(\)"):
        hook.state_dict()
    hook.close()


@pytest.mark.parametrize(("damage", "said"), [
    (lambda state: state.pop("layout"), "must be of ddp_hook's state_dict, it lacks layout"),
    (lambda state: state["states"].pop(), "reducers, one a bucket, got"),
    (lambda state: state.clear(), "it lacks step, layout, states"),
    (lambda state: state.update(step="x"), "the state must have a number as step, got 'x'"),
    (lambda state: state["layout"][0].append("other"), "as named_parameters, got other: pass"),
    (lambda state: state["states"][0].pop("step"), "it lacks step"),
    (lambda state: state["states"][0].update(scheme="topk:density=0.5"), "must have scheme="),
])  # fmt: skip
def test_a_state_that_is_damaged_on_one_rank_is_refused_on_all(comm, seed, damage, said):
    """The hook goes on as if it had not been tried."""
    wrapped, hook = trained(comm, seed)
    state, last = hook.state_dict(), comm.size - 1
    before = [reducer.memory_norm() for reducer in hook.reducers.values()]
    if comm.rank == last:
        damage(state)
    with pytest.raises(InvalidArgument, match=f"rank {last}: .*{said}"):
        hook.load_state_dict(state)
    assert before == [reducer.memory_norm() for reducer in hook.reducers.values()]
    step_of(wrapped, factors(wrapped.module, comm, seed, 3))
    hook.close()


def test_states_of_other_groups_on_one_rank(comm, seed):
    _, hook = trained(comm, seed)
    state = hook.state_dict()
    if comm.rank == comm.size - 1:
        state["layout"].reverse()
    with pytest.raises(Disagreement, match="a state of ddp_hook of"):
        hook.load_state_dict(state)
    hook.close()


def test_another_model(comm, seed):
    """A hook is one model's."""
    _, hook = trained(comm, seed)
    other = DDP(nn.Linear(3, 2))
    other.register_comm_hook(None, hook)
    with pytest.raises(RuntimeError, match="make one hook for each model"):
        other(torch.ones(1, 3)).sum().backward()
    hook.close()


def test_a_model_that_lost_a_parameter(comm, seed):
    """Another DDP of the same model brings fewer gradients than the hook's memory is for."""
    wrapped, hook = trained(comm, seed)
    wrapped.module.square.requires_grad_(False)
    other = DDP(wrapped.module, bucket_cap_mb=CAP)
    other.register_comm_hook(None, hook)
    with pytest.raises(RuntimeError, match=r"square.*are missing: make another hook"):
        other(factors(wrapped.module, comm, seed, 3)).backward()
    hook.close()


@pytest.mark.parametrize("lost", [False, True])
def test_another_model_on_one_rank(comm, seed, lost):
    """The others, which have all gradients of their model, learn why the last rank has not."""
    wrapped, hook = trained(comm, seed)
    model = wrapped.module if lost else Weighted()
    model.square.requires_grad_(not lost)
    other = DDP(model, bucket_cap_mb=CAP)
    other.register_comm_hook(None, hook)
    model.square.requires_grad_(True)
    used = other if comm.rank == comm.size - 1 else wrapped
    said = "square.*are missing: make another hook" if lost else "make one hook for each model"
    with pytest.raises(RuntimeError, match=said):
        used(factors(wrapped.module, comm, seed, 3)).backward()
    hook.close()


def test_nodes_are_the_workers_of_the_hook(world, comm, seed, monkeypatch):
    """On two ranks the same as without; on three, all ranks get the same gradients, dense ones the mean."""
    monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "2")
    own = mpicomp.Comm(world)
    for scheme, exact in (("dense:nodes=yes", True), ("topk:density=0.5,nodes=yes", own.levels is None)):
        plain, others = scheme.replace("nodes=yes", "nodes=no"), []
        for text in (scheme, plain):
            wrapped, hook = hooked(Weighted(), own, text)
            others.append([step_of(wrapped, factors(wrapped.module, own, seed, step)) for step in range(4)][-1])
            hook.close()
        for one, other in zip(*others, strict=True):
            assert world.bcast(one).equal(one)
            assert not exact or torch.allclose(one, other)
    own.Free()


class Complex(nn.Embedding):
    """Rows of complex numbers."""

    def __init__(self):
        super().__init__(4, 2, dtype=torch.complex64)

    def forward(self, rows):
        return torch.view_as_real(self.weight)[rows]


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("made", "said"), [
    (Complex, "gradients must be one of .* got torch.complex64 of weight"),
    (lambda: nn.Embedding(4, 2, sparse=True), "the gradient of weight is sparse, expected a dense one"),
], ids=["complex", "sparse"])
def test_gradients_that_cannot_be_averaged(comm, made, said, alone):
    """DDP shows complex gradients as real ones, twice as many."""
    last = comm.size - 1
    model = nn.Embedding(4, 2) if alone and comm.rank < last else made()
    wrapped = DDP(model, init_sync=False)
    hook = ddp_hook(comm, "dense", model.named_parameters())
    wrapped.register_comm_hook(None, hook)
    with pytest.raises(RuntimeError, match=f"rank {last if alone else 0}: {said}"):
        wrapped(torch.tensor([1, 3])).sum().backward()
    hook.close()


@pytest.mark.parametrize("number", [0, 1])
def test_gradients_that_one_rank_refuses_in_a_local_step(comm, seed, monkeypatch, number):
    """The other ranks learn it in their next step that sends, whichever group it was."""
    model, last = Weighted(), comm.size - 1
    wrapped, hook = hooked(model, comm, "localsgd:period=4")
    for step in range(2):
        step_of(wrapped, factors(model, comm, seed, step))
    assert len(hook.reducers) > 1
    plainly = ddp.check_gradients

    def check(group, flat):
        if comm.rank == last and group.number == number:
            raise InvalidArgument("no memory")
        plainly(group, flat)

    monkeypatch.setattr(ddp, "check_gradients", check)
    with pytest.raises(RuntimeError, match=f"rank {last}: no memory"):
        for step in range(4):
            step_of(wrapped, factors(model, comm, seed, step))
    hook.close()
