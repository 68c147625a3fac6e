"""``mpicomp.torch`` on ranks that do not do the same: one error on every rank, and training can go on."""

import copy

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn
from torch.utils.checkpoint import checkpoint

import mpicomp
from mpicomp.errors import Disagreement, InvalidArgument
from mpicomp.torch import DistributedOptimizer, broadcast_optimizer_state, ddp_hook
from mpicomp.trace import Recorder

torch.set_num_threads(1)


def net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def wrap(model, comm, scheme="topk:density=0.5", inner=None, **options):
    inner = inner or torch.optim.SGD(model.parameters(), lr=0.1)
    return DistributedOptimizer(inner, model.named_parameters(), comm, scheme, **{"bucket_bytes": 60, **options})


def backward(model, comm, factor=1.0):
    (model(torch.full((3, 6), 1.0 + comm.rank)) * factor).pow(2).mean().backward()


def bits(model):
    return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())


def is_last(comm):
    return comm.rank == comm.size - 1


def several(comm):
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")


# -- construction

OPTIONS = {
    "scheme": {"scheme": "topk:density=0.25"},
    "nonfinite": {"nonfinite": "skip"},
    "overlap": {"overlap": False},
    "bucket_bytes": {"bucket_bytes": 61},
    "broadcast": {"broadcast": False},
    "algorithm": {"algorithm": "ring"},
    "measures": {"measures": 2},
    "densities": {"densities": {"0.weight": 1.0}},
    "grad_scaler": {},
    "trace": {},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_options_that_one_rank_gives(comm, seed, folder, made, option):
    several(comm)
    model, options = net(seed), {}
    with Recorder(comm, str(folder / "run.h5")) as trace:
        if is_last(comm):
            options |= OPTIONS[option]
            options |= {"grad_scaler": {"grad_scaler": torch.amp.GradScaler("cpu")},
                        "trace": {"trace": trace}}.get(option, {})
        del made[:]
        with pytest.raises(Disagreement, match=f"rank {comm.size - 1}: DistributedOptimizer .*{option}"):
            wrap(model, comm, **options)
    assert all(one == MPI.COMM_NULL for one in made)


@pytest.mark.parametrize("option", ["scheme", "nonfinite", "algorithm", "measures", "densities", "trace"])
def test_options_of_the_hook_that_one_rank_gives(comm, folder, made, option):
    several(comm)
    options = {"scheme": "topk:density=0.5"}
    with Recorder(comm, str(folder / "run.h5")) as trace:
        if is_last(comm):
            options |= {"trace": trace} if option == "trace" else OPTIONS[option]
        del made[:]
        with pytest.raises(Disagreement, match=f"rank {comm.size - 1}: ddp_hook .*{option}"):
            ddp_hook(comm, **options)
    assert all(one == MPI.COMM_NULL for one in made)


@pytest.mark.parametrize("option", ["scheme", "nonfinite", "algorithm", "measures", "densities"])
def test_options_of_a_reducer_that_one_rank_gives(comm, option):
    several(comm)
    options = {"scheme": "topk:density=0.5"} | (OPTIONS[option] if is_last(comm) else {})
    with pytest.raises(Disagreement, match=f"rank {comm.size - 1}: Reducer "):
        mpicomp.Reducer(comm, **options)


def test_a_reducer_may_be_traced_on_one_rank(comm, folder):
    """A trace changes no collective of a reducer."""
    with Recorder(comm, str(folder / "run.h5")) as trace:
        reducer = mpicomp.Reducer(comm, "topk:density=0.5", measures=1, trace=trace if is_last(comm) else None)
        for _ in range(2):
            reducer.reduce(np.ones(10, np.float32))


@pytest.mark.parametrize("options", [{"densities": 3}, {"trace": "run.h5"}], ids=lambda one: next(iter(one)))
def test_options_of_a_reducer_that_are_wrong_on_one_rank(comm, options):
    with pytest.raises((InvalidArgument, TypeError, AttributeError), match=f"rank {comm.size - 1}: "):
        mpicomp.Reducer(comm, "topk:density=0.5", **(options if is_last(comm) else {}))


WRONG = {
    "unknown option": ({"densty": 0.1}, "no option densty: the options are algorithm, densities, measures, trace"),
    "workers": ({"workers": 2}, "no option workers"),
    "scheme": ({"scheme": "tpok"}, "unknown scheme"),
    "nonfinite": ({"nonfinite": "ignore"}, "nonfinite must be one of"),
    "densities": ({"densities": {"first": 0.1}}, "densities must name parameters of the model, got first"),
    "grad_scaler": ({"grad_scaler": 1024.0}, "grad_scaler must be a GradScaler, got float"),
    "bucket_bytes": ({"bucket_bytes": 0}, "bucket_bytes must be positive, got 0"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_options_that_are_wrong_on_one_rank(comm, seed, made, wrong):
    options, said = WRONG[wrong]
    del made[:]
    with pytest.raises(InvalidArgument, match=f"^rank {comm.size - 1}: {said}"):
        wrap(net(seed), comm, **(options if is_last(comm) else {}))
    assert all(one == MPI.COMM_NULL for one in made)


@pytest.mark.parametrize("wrong", ["unknown option", "workers", "scheme", "nonfinite"])
def test_options_of_the_hook_that_are_wrong_on_one_rank(comm, made, wrong):
    options, said = WRONG[wrong]
    del made[:]
    with pytest.raises(InvalidArgument, match=f"^rank {comm.size - 1}: {said}"):
        ddp_hook(comm, **({"scheme": "dense"} | (options if is_last(comm) else {})))
    assert all(one == MPI.COMM_NULL for one in made)


def test_parameters_that_are_wrong_on_one_rank(comm, seed):
    model = net(seed)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    named = inner.param_groups if is_last(comm) else model.named_parameters()
    with pytest.raises(InvalidArgument, match=rf"^rank {comm.size - 1}: named_parameters must be .* got a dict"):
        DistributedOptimizer(inner, named, comm)


@pytest.mark.parametrize("kind", ["class", "groups"])
def test_optimizers_that_differ(comm, seed, kind):
    several(comm)
    model = net(seed)
    inner = torch.optim.SGD(model.parameters(), 0.1)
    if is_last(comm):
        inner = (torch.optim.Adam(model.parameters(), 0.1) if kind == "class" else
                 torch.optim.SGD([{"params": [one]} for one in model.parameters()], 0.1))
    with pytest.raises(Disagreement, match=r"SGD of groups \[6\]"):
        wrap(model, comm, inner=inner)


def test_state_that_one_rank_cannot_take(comm, seed):
    several(comm)
    model = net(seed)
    groups = [{"params": [one]} for one in model.parameters()] if is_last(comm) else model.parameters()
    with pytest.raises(ValueError, match=f"rank {comm.size - 1}: loaded state dict has a different number"):
        broadcast_optimizer_state(torch.optim.SGD(groups, 0.1), comm)


def test_a_long_state_is_sent_in_pieces(comm, seed, monkeypatch):
    """MPI counts at most 2^31 - 1 bytes of a message."""
    several(comm)
    model = net(seed)
    optimizer = torch.optim.Adam(model.parameters(), 0.1 + comm.rank)
    backward(model, comm, 1.0 + comm.rank)
    optimizer.step()
    monkeypatch.setattr(comm._engine.link, "max_count", 100)
    before = comm.traffic.messages
    broadcast_optimizer_state(optimizer, comm)
    messages, state = comm.traffic.messages - before, optimizer.state_dict()
    moments = [moment.numpy().tobytes() for one in state["state"].values() for moment in one.values()]
    assert len(set(comm.allgather(b"".join(moments)))) == 1 and state["param_groups"][0]["lr"] == 0.1
    assert comm.rank != 0 or messages > 10


# -- communicators

@pytest.mark.parametrize("given", ["mpi4py's", "ours"])
@pytest.mark.parametrize("options", [{}, {"overlap": False}, {"scheme": "dense"}], ids=str)
def test_close_frees_every_communicator_made(comm, seed, made, given, options):
    model = net(seed)
    mine = MPI.COMM_WORLD if given == "mpi4py's" else comm
    optimizer = wrap(model, mine, **options)
    backward(model, comm)
    optimizer.step()
    optimizer.close()
    assert made and all(one == MPI.COMM_NULL for one in made)
    assert comm != MPI.COMM_NULL


@pytest.fixture(params=["one node", "nodes of one"])
def reproducible(request, world, monkeypatch):
    if request.param == "nodes of one":
        monkeypatch.setenv("MPICOMP_RANKS_PER_NODE", "1")
    comm = mpicomp.Comm(world, reproducible=True)
    yield comm
    comm.Free()


def in_rank_order(rows):
    """The mean in the order of the ranks, as the reproducible mode promises."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total * np.float32(1 / len(rows))


def test_a_duplicate_is_as_reproducible_as_its_original(reproducible, world):
    for flag, expected in ((None, True), (False, False)):
        twin = mpicomp.Comm(reproducible, flag)
        assert twin.reproducible == expected
        twin.Free()


@pytest.mark.parametrize("overlap", [True, False])
def test_the_optimizer_is_as_reproducible_as_its_communicator(reproducible, seed, overlap):
    """The bits of the sum in rank order, on any number of nodes."""
    n, comm = 5003, reproducible
    rows = torch.randn(comm.size, 2, n, generator=torch.Generator().manual_seed(seed))
    rows *= 4.0 ** torch.randint(-3, 3, rows.shape, generator=torch.Generator().manual_seed(seed))
    parameters = [nn.Parameter(torch.zeros(n)) for _ in range(2)]  # of two buckets, on two lanes
    named = [("a", parameters[0]), ("b", parameters[1])]
    optimizer = DistributedOptimizer(torch.optim.SGD(parameters, 1.0), named, comm, bucket_bytes=4 * n, overlap=overlap)
    sum((one * row).sum() for one, row in zip(parameters, rows[comm.rank], strict=True)).backward()
    for one, expected in zip(parameters, in_rank_order(rows), strict=True):
        assert torch.equal(one.grad, expected)
    optimizer.close()


def test_the_hook_is_as_reproducible_as_its_communicator(reproducible):
    hook = ddp_hook(reproducible, "dense")
    assert len(hook._lanes.comms) == 2 and all(one.reproducible for one in hook._lanes.comms)
    hook.close()


# -- steps

RATES = {
    "lr": lambda group: group.update(lr=0.05),
    "tensor lr": lambda group: group.update(lr=torch.tensor(0.05)),
    "momentum": lambda group: group.update(momentum=0.5),
    "weight_decay": lambda group: group.update(weight_decay=0.5),
}


def two_groups(model):
    first, *others = model.parameters()
    return torch.optim.SGD([{"params": [first]}, {"params": others, "lr": 0.1}], lr=0.2)


@pytest.mark.parametrize(("rate", "scheme", "options"), [
    *((rate, "topk:density=0.5", {}) for rate in RATES), ("lr", "topk:density=0.5", {"overlap": False}),
    ("lr", "topk:density=0.5", {"nonfinite": "skip"}), ("lr", "dense", {}),
    ("lr", "localsgd:period=3", {}),  # whose first steps send nothing
], ids=str)  # fmt: skip
def test_hyperparameters_that_differ(comm, seed, scheme, options, rate):
    """The gradients are there: with rates that agree, ``step`` goes on, and nothing is lost."""
    several(comm)
    models = [net(seed) for _ in range(2)]
    optimizers = [wrap(model, comm, scheme, two_groups(model), **options) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        for step in range(4):
            if model is models[0] and step == 1:
                if is_last(comm):
                    RATES[rate](optimizer.param_groups[1])
                name = rate.removeprefix("tensor ")
                others = "rank 0" if comm.size == 2 else f"ranks 0-{comm.size - 2}"
                with pytest.raises(Disagreement, match=rf"group 1.*{others}: .*{name}=.*rank {comm.size - 1}: .*"
                                                       rf"{name}=0\.0?5.*ReduceLROnPlateau"):
                    backward(model, comm)
                broadcast_optimizer_state(optimizer, comm)
            else:
                backward(model, comm)
            optimizer.step()
            optimizer.zero_grad()
    assert bits(models[0]) == bits(models[1])
    for optimizer in optimizers:
        optimizer.close()


def test_a_plateau_of_one_ranks_loss(comm, seed):
    several(comm)
    model = net(seed)
    optimizer = wrap(model, comm)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    with pytest.raises(Disagreement, match=r"lr=0\.05"):
        for step in range(3):
            optimizer.zero_grad()
            backward(model, comm)
            optimizer.step()
            schedule.step(1.0 if is_last(comm) else -step)
    optimizer.close()


def test_rates_that_agree(comm, seed):
    """Schedulers of rates and momentum, rates as tensors, an optimizer that has none."""
    model = net(seed)
    for inner, schedule in (
        (torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), torch.optim.lr_scheduler.OneCycleLR),
        (torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1)), torch.optim.lr_scheduler.StepLR),
        (torch.optim.LBFGS(model.parameters(), lr=0.1), torch.optim.lr_scheduler.StepLR),
        (torch.optim.Rprop(model.parameters()), torch.optim.lr_scheduler.StepLR),
    ):
        optimizer = wrap(model, comm, inner=inner)
        how = {"max_lr": 0.2, "total_steps": 5} if schedule is torch.optim.lr_scheduler.OneCycleLR else {"step_size": 2}
        schedule = schedule(optimizer, **how)
        for _ in range(4):
            def closure(optimizer=optimizer):
                optimizer.zero_grad()
                loss = model(torch.ones(3, 6)).pow(2).mean()
                loss.backward()
                return loss

            optimizer.step(closure)
            schedule.step()
        optimizer.close()


def test_a_rank_that_left_out_a_step(comm, seed):
    several(comm)
    model = net(seed)
    optimizer = wrap(model, comm, "dense")
    backward(model, comm)
    if not is_last(comm):
        optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(Disagreement, match=rf"rank {comm.size - 1}: 0 steps.*call step\(\) equally often"):
        backward(model, comm)
    optimizer.close()


@pytest.mark.parametrize(("scheme", "options"), [
    ("dense", {}), ("localsgd:period=3", {}), ("topk:density=0.5", {}), ("topk:density=0.5", {"overlap": False}),
    ("topk:density=0.5", {"nonfinite": "skip"}),
], ids=str)  # fmt: skip
def test_a_gradient_that_comes_twice_on_one_rank(comm, seed, scheme, options):
    """A reentrant checkpoint there: refused on every rank when backward ends."""
    torch.manual_seed(seed)
    twice, last, x = nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    model = nn.Sequential(twice, last)
    optimizer = wrap(model, comm, scheme, **options)
    for reentrant in (True, False):
        inner = checkpoint(twice, x, use_reentrant=reentrant and is_last(comm))
        loss = last(checkpoint(twice, inner, use_reentrant=reentrant and is_last(comm))).pow(2).mean()
        if reentrant:
            with pytest.raises(InvalidArgument, match=rf"rank {comm.size - 1}: the gradient of 0\.\w+ came twice"):
                loss.backward()
        else:
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()
    optimizer.close()


def test_backward_twice_on_one_rank(comm, seed):
    """Raised there; who catches it and drops the gradients has left out a step, which the next one finds."""
    several(comm)
    model = net(seed)
    optimizer = wrap(model, comm, "dense")
    backward(model, comm)
    if is_last(comm):
        with pytest.raises(InvalidArgument, match=r"ran again before step\(\)"):
            backward(model, comm)
    else:
        optimizer.step()
    optimizer.zero_grad()
    with pytest.raises(Disagreement, match="1 steps"):
        backward(model, comm)
    optimizer.close()


# -- closures

def closure_of(model, optimizer, comm, factors):
    """Each evaluation multiplies the last rank's outputs by the next factor."""
    factors = iter(factors)

    def closure():
        optimizer.zero_grad()
        factor = next(factors, 1.0) if is_last(comm) else 1.0
        loss = (model(torch.full((3, 6), 1.0 + comm.rank)) * factor - 1.0).pow(2).mean()
        loss.backward()
        return loss

    return closure


INNER = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.1),
    "adamw": lambda model: torch.optim.AdamW(model.parameters(), 0.01, amsgrad=True),
    "lbfgs": lambda model: torch.optim.LBFGS(model.parameters(), 0.5, max_iter=4),
    "wolfe": lambda model: torch.optim.LBFGS(model.parameters(), 0.5, max_iter=4, line_search_fn="strong_wolfe"),
}


@pytest.mark.parametrize(("scheme", "inner", "bad"), [
    *(("dense", inner, 0) for inner in INNER), *(("dense", inner, 2) for inner in INNER if "lbfgs" in inner),
    ("dense", "wolfe", 1), ("topk:density=0.5", "sgd", 0), ("topk:density=0.5", "lbfgs", 1),
])  # fmt: skip
def test_a_closure_that_is_skipped_changes_nothing(comm, seed, scheme, inner, bad):
    """In whichever evaluation of a step NaN comes, weights and the optimizer's state stay as they were."""
    model, twin = net(seed), net(seed)
    ours, theirs = (wrap(one, comm, scheme, INNER[inner](one), nonfinite="skip") for one in (model, twin))
    for step in range(4):
        factors = [torch.nan if step == 2 and i == bad else 1.0 for i in range(3)]
        if step == 2:
            before, state = bits(model), copy.deepcopy(ours.optimizer.state_dict())
            ours.step(closure_of(model, ours, comm, factors))
            assert ours.skipped
            assert bits(model) == before
            assert str(ours.optimizer.state_dict()) == str(state)
        else:
            for one, its in ((model, ours), (twin, theirs)):
                its.step(closure_of(one, its, comm, []))
                assert not its.skipped
    if scheme == "dense" or bad == 0:  # else the evaluations before have changed the error memory
        assert bits(model) == bits(twin)
    assert ours._exchange.reducers or comm.size == 1
    for one in (ours, theirs):
        one.close()


# -- parameters without names

@pytest.mark.parametrize("scheme", ["dense", "topk:density=0.5,dense=1d"])
def test_parameters_without_names(comm, seed, scheme):
    models = [net(seed), net(seed)]
    optimizers = [DistributedOptimizer(torch.optim.SGD(one.parameters(), 0.1), given, comm, scheme, algorithm="ring")
                  for one, given in zip(models, (models[0].parameters(), models[1].named_parameters()), strict=True)]
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            backward(model, comm)
            optimizer.step()
    assert bits(models[0]) == bits(models[1])
    state = optimizers[0].state_dict()
    optimizers[0].load_state_dict(state)
    for optimizer in optimizers:
        optimizer.close()


def test_names_that_are_needed_or_given_twice(comm, seed):
    models = [net(seed), net(seed)]
    both = [parameter for model in models for parameter in model.parameters()]
    inner = torch.optim.SGD(both, 0.1)
    named = [pair for model in models for pair in model.named_parameters()]
    with pytest.raises(InvalidArgument, match=r"0\.weight names two parameters.*give each its own name"):
        DistributedOptimizer(inner, named, comm)
    with pytest.raises(InvalidArgument, match=r"dense=norm goes by the names.*pass model\.named_parameters"):
        DistributedOptimizer(inner, both, comm, "topk:dense=norm")
    with pytest.raises(InvalidArgument, match=r"named_parameters must be model\.named_parameters.*got a Linear"):
        DistributedOptimizer(inner, models[0], comm)  # a Sequential gives its layers
