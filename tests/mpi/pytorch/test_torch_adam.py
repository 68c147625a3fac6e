"""1-bit Adam and 0/1 Adam as PyTorch optimizers; warnings about schemes that lose under Adam."""

import copy
import io
import pickle
import warnings

import needs_torch  # noqa: F401
import numpy as np
import pytest
import torch
from torch import nn

import mpicomp
from mpicomp import optim
from mpicomp.errors import Disagreement, InvalidArgument, NonFiniteGradient, SchemeWarning
from mpicomp.torch import DistributedOptimizer, OneBitAdam, ZeroOneAdam

torch.set_num_threads(1)
STEPS = 12
CASES = [(OneBitAdam, optim.OneBitAdam, {"warmup": 4}),
         (ZeroOneAdam, optim.ZeroOneAdam, {"warmup": 4, "doubling": 2, "longest": 2})]  # fmt: skip


def made(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))


def loss_of(model, seed, rank, step):
    rng = np.random.default_rng([seed, rank, step])
    x = torch.from_numpy(rng.standard_normal((8, 6)).astype(np.float32))
    return (model(x) - x.sum(dim=1, keepdim=True)).pow(2).mean()


def one_step(model, optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize(("kind", "core", "options"), CASES)
def test_the_same_as_on_arrays(comm, seed, kind, core, options):
    model = made(seed + comm.rank)  # rank 0's begins
    groups = [{"params": list(model[0].parameters()), "lr": 0.02}, {"params": list(model[2].parameters())}]
    optimizer = kind(groups, comm, lr=0.01, weight_decay=0.1, **options)
    weights = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    same = core(comm, weights, weight_decay=0.1, **options)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, seed, comm.rank, step).backward()
        gradients = {name: p.grad.numpy().copy() for name, p in model.named_parameters()}
        rates = {name: (0.02 if name.startswith("0") else 0.01) * 0.5 ** (step // 3) for name in weights}
        optimizer.step()
        scheduler.step()
        same.step(gradients, rates)
        for name, p in model.named_parameters():
            np.testing.assert_array_equal(p.detach().numpy(), weights[name])
    optimizer.close()


@pytest.mark.parametrize(("kind", "core", "options"), CASES)
def test_resume_through_a_file(comm, seed, kind, core, options):
    model = made(seed)
    through = kind(model.parameters(), comm, lr=0.01, **options)
    for step in range(STEPS):
        if step == 7:
            file = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": through.state_dict()}, file)
        one_step(model, through, loss_of(model, seed, comm.rank, step))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = made(seed + 1)
    other.load_state_dict(saved["model"])
    resumed = kind(other.parameters(), comm, lr=0.3, broadcast=False, **options)
    resumed.load_state_dict(saved["optimizer"])
    for step in range(7, STEPS):
        one_step(other, resumed, loss_of(other, seed, comm.rank, step))
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
    with pytest.raises(InvalidArgument, match=r"must be of .*Adam, with 'exchange'"):
        resumed.load_state_dict(torch.optim.Adam(other.parameters()).state_dict())


@pytest.mark.parametrize("damage", [
    lambda state: state.pop("exchange"),
    lambda state: state["exchange"].pop("second/parameter 0"),
    lambda state: state["exchange"]["reducers"]["momentum"].pop("step"),
    lambda state: state["exchange"].update(steps=torch.tensor([1, 2])),
    lambda state: state["exchange"].update(alone="always"),
], ids=["all", "moments", "reducer", "steps", "local steps"])
@pytest.mark.parametrize(("kind", "core", "options"), CASES)
def test_a_state_that_is_damaged_on_one_rank_changes_nothing(comm, seed, kind, core, options, damage):
    model, twin = made(seed), made(seed)
    optimizer, other = (kind(one.parameters(), comm, lr=0.01, **options) for one in (model, twin))
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["lr"] = 0.5
    if comm.rank == comm.size - 1:
        damage(state)
    for step in range(8):
        if step == 6:
            with pytest.raises(InvalidArgument, match=f"rank {comm.size - 1}: "):
                optimizer.load_state_dict(state)
        for one, by in ((model, optimizer), (twin, other)):
            one_step(one, by, loss_of(one, seed, comm.rank, step))
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("make", [
    lambda model, comm: OneBitAdam(model.parameters(), comm),
    lambda model, comm: DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.parameters(), comm,
                                             "topk"),
], ids=["OneBitAdam", "DistributedOptimizer"])
def test_neither_copied_nor_pickled_nor_loaded_from_nothing(comm, seed, make):
    optimizer = make(made(seed), comm)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidArgument, match=r"cannot be copied or pickled: take its state_dict\(\)"):
            duplicate(optimizer)
    state = optimizer.state_dict()
    with pytest.raises(InvalidArgument, match=f"rank {comm.size - 1}: the state must "):
        optimizer.load_state_dict(None if comm.rank == comm.size - 1 else state)
    optimizer.load_state_dict(state)
    optimizer.close()


@pytest.mark.parametrize(("here", "others", "error", "said"), [
    ({"betas": (0.9,)}, {}, InvalidArgument, r"betas must be two numbers, .* got \(0.9,\)"),
    ({"betas": (0.9, 0.99, 0.999)}, {"betas": np.array([0.9, 0.99])}, InvalidArgument, "betas must be two numbers"),
    ({"betas": 0.9}, {"betas": 0.9}, InvalidArgument, "betas must be two numbers, .* got 0.9"),
    ({"betas": ("x", 0.9)}, {}, InvalidArgument, "beta1 must be a number in .*, got 'x'"),
    ({"device": "meta"}, {}, InvalidArgument, "must be on cpu or cuda, got parameter 0 on meta: .* by to_empty"),
    ({"params": []}, {}, ValueError, "optimizer got an empty parameter list"),
    ({"broadcast": False}, {"broadcast": True}, Disagreement, "OneBitAdam broadcast="),
])  # fmt: skip
def test_arguments_that_one_rank_cannot_take(comm, seed, monkeypatch, here, others, error, said):
    """One error on all ranks, which then free the communicator."""
    free, freed = mpicomp.Comm.Free, []
    monkeypatch.setattr(mpicomp.Comm, "Free", lambda one: (freed.append(one), free(one)))
    options = dict(here if comm.rank == comm.size - 1 else others)
    model = made(seed).to(options.pop("device", "cpu"))
    if error is Disagreement and comm.size == 1:
        pytest.skip("takes two ranks")
    with pytest.raises(error, match=said):
        OneBitAdam(**{"params": model.parameters(), "comm": comm, **options})
    assert len(freed) == 1


@pytest.mark.parametrize(("kind", "core", "options"), CASES)
def test_a_parameter_that_lies_otherwise_on_one_rank(comm, seed, kind, core, options):
    """``model.to(memory_format=...)`` leaves it so."""
    model = made(seed)
    optimizer = kind(model.parameters(), comm, lr=0.01, **options)
    if comm.rank == comm.size - 1:
        model[0].weight.data = model[0].weight.data.t().contiguous().t()
    with pytest.raises(InvalidArgument, match=f"rank {comm.size - 1}: parameters must be contiguous"):
        one_step(model, optimizer, loss_of(model, seed, comm.rank, 0))


def test_groups_of_a_resumed_scheduler_and_named_parameters(comm, seed):
    model = made(seed)
    optimizer = OneBitAdam(model.named_parameters(), comm, lr=0.01)
    optimizer.close()
    groups = [{"params": list(model.parameters()), "initial_lr": 0.02}]
    optimizer = OneBitAdam(groups, comm, lr=0.01)
    assert torch.optim.lr_scheduler.ConstantLR(optimizer, 0.5, last_epoch=0).base_lrs == [0.02]
    optimizer.close()


@pytest.mark.parametrize(("freeze", "weight_decay"), [(0, 0.1), (6, 0.0), (6, 0.1)])
@pytest.mark.parametrize(("kind", "core", "options"), CASES)
def test_frozen_parameters_do_not_move(comm, seed, kind, core, options, freeze, weight_decay):
    """From the start, or after an exchange, with momenta that are not zero."""
    model = made(seed)
    optimizer = kind(model.parameters(), comm, lr=0.01, weight_decay=weight_decay, **options)
    for step in range(STEPS):
        if step == freeze:
            model[0].requires_grad_(False)
            before = [p.detach().clone() for p in model.parameters()]
        one_step(model, optimizer, loss_of(model, seed, comm.rank, step))
    moved = [not torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)]
    assert moved == [False, False, True, True]
    optimizer.close()


@pytest.mark.parametrize(("kind", "core", "options"), CASES)
def test_an_overflow_on_one_rank_is_one_on_all(comm, seed, kind, core, options):
    model = made(seed)
    optimizer = kind(model.parameters(), comm, lr=0.01, nonfinite="skip", **options)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(3):
        optimizer.zero_grad()
        before = [p.detach().clone() for p in model.parameters()]
        scaler.scale(loss_of(model, seed, comm.rank, step)).backward()
        if step == 1 and comm.rank == comm.size - 1:
            model[2].bias.grad.fill_(torch.inf)
        scaler.step(optimizer)
        scaler.update()
        assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True)) == (step == 1)
    assert scaler.get_scale() == (2.0 if comm.rank == comm.size - 1 else 4.0)  # each has its own


@pytest.mark.parametrize(("kind", "core", "options"), CASES)
def test_bad_input_is_one_error_on_all_ranks(comm, seed, kind, core, options):
    model, last = made(seed), comm.size - 1
    with pytest.raises(InvalidArgument, match="may differ in lr alone, got weight_decay"):
        kind([{"params": list(model.parameters()), "weight_decay": 0.1}], comm, **options)
    with pytest.raises(InvalidArgument, match="must be contiguous and float32 or float64"):
        kind((made(seed) if comm.rank < last else made(seed).half()).parameters(), comm, **options)
    optimizer = kind(model.parameters(), comm, lr=0.01, **options)
    one_step(model, optimizer, loss_of(model, seed, comm.rank, 0))
    before = [p.detach().clone() for p in model.parameters()]
    for wrong, error, text in ((torch.zeros(5, 6).to_sparse(), InvalidArgument, "is sparse, expected a dense one"),
                               (torch.full((5, 6), torch.nan), NonFiniteGradient, "not finite")):
        loss_of(model, seed, comm.rank, 1).backward()
        if comm.rank == last:
            model[0].weight.grad = wrong
        with pytest.raises(error, match=f"rank {last}.*{text}"):
            optimizer.step()
        optimizer.zero_grad()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), before, strict=True))
    with pytest.raises(InvalidArgument, match="parameters cannot be added"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    one_step(model, optimizer, loss_of(model, seed, comm.rank, 2))


@pytest.mark.parametrize(("make", "scheme", "count"), [
    (torch.optim.AdamW, "topk:density=0.1", 1), (torch.optim.Adam, "topk-global:density=0.1", 2),
    (torch.optim.Adam, "topk:density=0.1,memory=ef21", 0), (torch.optim.Adam, "powersgd", 0),
    (torch.optim.SGD, "topk:density=0.1", 0), (torch.optim.SGD, "topk:density=0.1,memory=adam-update", 0),
])  # fmt: skip
def test_schemes_that_lose_under_adam_say_so(comm, seed, make, scheme, count):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = made(seed)
        DistributedOptimizer(make(model.parameters(), lr=0.1), model.named_parameters(), comm, scheme).close()
    said = [one for one in caught if one.category is SchemeWarning]
    assert len(said) == count * (comm.rank == 0)
    assert all(one.filename == __file__ and "under Adam" in str(one.message) for one in said)


@pytest.mark.parametrize(("scheme", "advice"), [
    ("topk:memory=adam-update", "topk:memory=adam-update,beta1=0.9"),
    ("topk:memory=update", "topk:memory=update,momentum=0.9"),
    ("dgc:density=0.1,momentum=0.5", "dgc:density=0.1,momentum=0.9"),
])  # fmt: skip
def test_a_second_momentum_is_refused_with_the_scheme_to_take(comm, seed, scheme, advice):
    model = made(seed)
    with pytest.raises(InvalidArgument, match=rf"Write {advice} and give the optimizer none"):
        DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters(), comm, scheme)
