"""DiLoCo against the equations written out in NumPy, exact resume, and what is refused on every rank."""

import copy
import io
import re

import numpy as np
import pytest
from mpi4py import MPI

if MPI.COMM_WORLD.size > 4:
    pytest.skip("runs on 1 to 4 ranks", allow_module_level=True)
torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'mpicomp[torch-test]'")

from torch import nn  # noqa: E402

from mpicomp.errors import BufferRefused, Disagreement, InvalidArgument, NonFiniteGradient  # noqa: E402
from mpicomp.optim import DiLoCo as ArrayDiLoCo  # noqa: E402
from mpicomp.optim.fragments import divided  # noqa: E402
from mpicomp.torch import DiLoCo, DistributedOptimizer  # noqa: E402

torch.set_num_threads(1)
STEPS = 13
SPARSE = "topk:density=0.3,codec=sign"  # the composition closest to SparseLoCo
SETTINGS = [
    {"every": 4},
    {"every": 1, "outer_momentum": 0.0, "outer_lr": 1.0},
    {"every": 4, "fragments": 3},
    {"every": 5, "delay": 2},
    {"every": 6, "fragments": 3, "delay": 5, "merge": 0.25},
    {"every": 2, "fragments": 4},
]


def made(seed, dtype=torch.float64):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3)).to(dtype)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def batch(seed, step, rank, dtype=torch.float64):
    return torch.randn(8, 5, generator=torch.Generator().manual_seed(1000 * seed % 2**31 + 10 * step + rank)).to(dtype)


def inner_step(model, optimizer, x):
    optimizer.zero_grad()
    (model(x) - x[:, :3]).pow(2).mean().backward()
    optimizer.step()


def train(model, optimizer, diloco, seed, rank, steps):
    for step in steps:
        inner_step(model, optimizer, batch(seed, step, rank, next(model.parameters()).dtype))
        diloco.step()


@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_in_any_order_begin_alike_and_are_averaged(comm, order):
    weights = {"w": np.array(np.arange(6.0).reshape(2, 3) + 100 * comm.rank, order=order)}
    diloco = ArrayDiLoCo(weights, comm, every=2, outer_lr=1.0, outer_momentum=0.0)
    np.testing.assert_array_equal(weights["w"], np.arange(6.0).reshape(2, 3))
    for _ in range(2):
        weights["w"] -= comm.rank
        diloco.step()
    np.testing.assert_allclose(weights["w"], np.arange(6.0).reshape(2, 3) - (comm.size - 1))
    diloco.close()


def values(model):
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def bits(model):
    return b"".join(value.tobytes() for value in values(model).values())


def by_the_equations(seed, size, every=30, fragments=1, delay=0, outer_lr=0.7, outer_momentum=0.9, merge=None):
    """All workers in one process: their parameters and theta after all steps."""
    merge = merge or (0.5 if delay else 1.0)
    models = [made(seed) for _ in range(size)]
    inner = [adamw(model) for model in models]
    theta = {name: value.copy() for name, value in values(models[0]).items()}
    groups = divided({name: value.size for name, value in theta.items()}, fragments)
    m = {name: np.zeros_like(value) for name, value in theta.items()}
    flying = {}
    for step in range(1, STEPS + 1):
        for rank in range(size):
            inner_step(models[rank], inner[rank], batch(seed, step - 1, rank))
        for number, names in enumerate(groups):
            phase = max(1, (number + 1) * every // fragments)
            if step >= phase and step % every == phase % every:
                deltas = {name: np.mean([theta[name] - values(one)[name] for one in models], axis=0) for name in names}
                flying[number] = step + delay, deltas
            if number in flying and flying[number][0] == step:
                for name, delta in flying.pop(number)[1].items():
                    m[name] = outer_momentum * m[name] + delta
                    theta[name] = theta[name] - outer_lr * (delta + outer_momentum * m[name])
                    for one in models:
                        own = values(one)[name]
                        own[...] = (1 - merge) * own + merge * theta[name]
    return models, theta


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_the_equations(comm, seed, settings):
    models, theta = by_the_equations(seed, comm.size, **settings)
    model = made(seed + comm.rank)  # rank 0's is taken
    optimizer = adamw(model)
    diloco = DiLoCo(model, optimizer, comm, **settings)
    train(model, optimizer, diloco, seed, comm.rank, range(STEPS))
    for name, value in values(models[comm.rank]).items():
        np.testing.assert_allclose(values(model)[name], value, rtol=1e-8, atol=1e-10)
    with diloco.outer_parameters():
        assert len(set(comm.allgather(bits(model)))) == 1
        for name, value in theta.items():
            np.testing.assert_allclose(values(model)[name], value, rtol=1e-8, atol=1e-10)
    diloco.synchronize()
    assert len(set(comm.allgather(bits(model)))) == 1
    diloco.close()


@pytest.mark.parametrize("scheme", ["dense", SPARSE, "int8", "powersgd:rank=1"])
def test_numpy_arrays_have_the_same_bits(comm, seed, scheme):
    model, twin = made(seed, torch.float32), made(seed, torch.float32)
    inner, other = adamw(model), adamw(twin)
    ours = DiLoCo(model, inner, comm, 3, scheme, fragments=2)
    theirs = ArrayDiLoCo(values(twin), comm, 3, scheme, fragments=2)
    train(model, inner, ours, seed, comm.rank, range(STEPS))
    train(twin, other, theirs, seed, comm.rank, range(STEPS))
    assert bits(model) == bits(twin)
    assert ours.memory_norm() == theirs.memory_norm()
    for one in (ours, theirs):
        one.close()


def saved(*parts):
    """The states of model, inner optimizer and DiLoCo, through a file."""
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("scheme", ["dense", SPARSE, "onebit"])
@pytest.mark.parametrize("stop", [5, 7])
@pytest.mark.parametrize("settings", [{"every": 4}, {"every": 6, "fragments": 3, "delay": 3}], ids=str)
def test_resumed_training_has_the_same_bits(comm, seed, settings, stop, scheme):
    """With the delay an exchange is in flight when the state is taken."""
    first, second = made(seed, torch.float32), made(seed + 1, torch.float32)
    inner, resumed_inner = adamw(first), adamw(second)
    whole = DiLoCo(first, inner, comm, scheme=scheme, **settings)
    train(first, inner, whole, seed, comm.rank, range(stop))
    states = saved(first, inner, whole)
    assert any(name.startswith("mean/") for name in states[2]) == ("delay" in settings)
    train(first, inner, whole, seed, comm.rank, range(stop, STEPS))
    resumed = DiLoCo(second, resumed_inner, comm, scheme=scheme, **settings)
    for part, state in zip((second, resumed_inner, resumed), states, strict=True):
        part.load_state_dict(state)
    train(second, resumed_inner, resumed, seed, comm.rank, range(stop, STEPS))
    assert bits(first) == bits(second)
    ends = [one.state_dict() for one in (whole, resumed)]
    assert ends[0].keys() == ends[1].keys()
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]) if isinstance(value, torch.Tensor) else value == ends[1][name]
    for one in (whole, resumed):
        one.close()


@pytest.mark.parametrize("settings", [{"delay": 1}, {"merge": 0.5}], ids=str)
def test_a_parameter_without_dimensions(comm, settings):
    model = nn.ParameterDict({"scale": nn.Parameter(torch.tensor(1.0))})
    diloco = DiLoCo(model, torch.optim.SGD(model.parameters()), comm, every=2, outer_lr=1.0, outer_momentum=0.0,
                    **settings)
    for _ in range(3):
        with torch.no_grad():
            model["scale"] += comm.rank
        diloco.step()
    diloco.synchronize()
    assert len(set(comm.allgather(model["scale"].item()))) == 1 and model["scale"].shape == ()
    diloco.close()


@pytest.mark.parametrize(("other", "text"), [({"every": 7}, "every=7"), ({"fragments": 2}, "fragments=2"),
                                             ({"delay": 1}, "delay=1")])
def test_a_state_of_other_settings_is_refused(comm, seed, other, text):
    model = made(seed)
    inner = adamw(model)
    diloco = DiLoCo(model, inner, comm, every=4)
    state = DiLoCo(model, inner, comm, **{"every": 4, **other}).state_dict()
    wrong = state if comm.rank == comm.size - 1 else diloco.state_dict()
    with pytest.raises(InvalidArgument, match=rf"rank {comm.size - 1}: the state must be of every=4.*got .*{text}"):
        diloco.load_state_dict(wrong)
    lacking = {name: value for name, value in diloco.state_dict().items() if name != "theta/0.weight"}
    with pytest.raises(InvalidArgument, match=r"theta/0\.weight as float\[6, 5\], got nothing"):
        diloco.load_state_dict(lacking)
    for absent in ("fragment 0/rounds", "fragment 0/density"):
        lacking = {name: value for name, value in diloco.state_dict().items()
                   if name != absent or comm.rank < comm.size - 1}
        with pytest.raises(InvalidArgument, match=rf"rank {comm.size - 1}: the state must .* lacks {absent}"):
            diloco.load_state_dict({**lacking, "steps": 4})
        assert diloco.steps == 0
    with pytest.raises(InvalidArgument, match="lacks every, fragments, delay, steps"):
        diloco.load_state_dict({})
    train(model, inner, diloco, seed, comm.rank, range(4))
    diloco.close()


@pytest.mark.parametrize(("name", "value", "text"), [
    (None, None, "a state must be what state_dict() returned, got NoneType"),
    ("steps", "many", "the state must have a number as steps, got 'many'"),
    ("fragment 0/rounds", "two", "the state must have a number as fragment 0/rounds, got 'two'"),
    ("fragment 0/started", float("nan"), "the state must have a number as fragment 0/started, got nan"),
    ("velocity/0.weight", torch.zeros(6, 5, dtype=torch.complex64),
     "velocity/0.weight as float[6, 5], got complex64[6, 5]"),
])
def test_a_state_that_is_damaged_on_one_rank_changes_nothing(comm, seed, name, value, text):
    model, last = made(seed), comm.size - 1
    inner = adamw(model)
    diloco = DiLoCo(model, inner, comm, every=2, scheme=SPARSE)
    at_first = diloco.state_dict()
    train(model, inner, diloco, seed, comm.rank, range(5))
    before = diloco.state_dict()
    state = at_first if comm.rank < last else {**at_first, name: value} if name else None
    with pytest.raises(InvalidArgument, match=rf"rank {last}: .*{re.escape(text)}"):
        diloco.load_state_dict(state)
    for name, value in diloco.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    diloco.close()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_what_has_not_moved_is_not_moved_by_its_momentum(comm, seed, dtype):
    """``synchronize`` after the last exchange, and again; a worker may hold the common parameters rounded."""
    model = made(seed, dtype)
    inner = adamw(model)
    diloco = DiLoCo(model, inner, comm, every=4, fragments=2)
    train(model, inner, diloco, seed, comm.rank, range(8))  # ends with the second fragment's exchange
    first, last = ([value.detach().clone() for value in one.parameters()] for one in (model[0], model[2]))
    diloco.synchronize()
    assert all(torch.equal(*pair) for pair in zip(model[2].parameters(), last, strict=True))
    assert not all(torch.equal(*pair) for pair in zip(model[0].parameters(), first, strict=True))
    at_end = [value.detach().clone() for value in model.parameters()]
    diloco.synchronize()
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), at_end, strict=True))
    if comm.rank == comm.size - 1:  # one worker's step is enough
        inner_step(model, inner, batch(seed, 9, comm.rank, dtype))
    diloco.synchronize()
    assert not any(torch.equal(*pair) for pair in zip(model.parameters(), at_end, strict=True))
    assert len(set(comm.allgather(next(model.parameters()).detach().double().numpy().tobytes()))) == 1
    diloco.close()


@pytest.mark.parametrize(("settings", "text"), [
    ({"every": 0}, r"every must be in \[1, inf\), got 0"),
    ({"every": 1.5}, "every must be a whole number"),
    ({"fragments": 0}, r"fragments must be in \[1, inf\), got 0"),
    ({"fragments": 5}, "fragments must be at most the number of parameters, 4, got 5"),
    ({"every": 3, "delay": 3}, "delay must be less than every=3 inner steps, got 3"),
    ({"delay": -1}, "delay must be in"), ({"outer_lr": 0}, "outer_lr must be in"),
    ({"outer_momentum": 1}, "outer_momentum must be in"), ({"merge": 0}, "merge must be in"),
    ({"nonfinite": "ignore"}, "nonfinite must be one of raise, skip, allow, got 'ignore'"),
    ({"scheme": "localsgd"}, "a scheme whose mean is the same on all ranks, got localsgd"),
    ({"scheme": "dgc"}, "outer_momentum must be 0, got 0.9"), ({"scheme": "no-such"}, "unknown scheme 'no-such'"),
], ids=str)  # fmt: skip
def test_bad_settings_of_one_rank_are_refused_on_all(comm, seed, settings, text):
    model, last = made(seed), comm.size - 1
    with pytest.raises(InvalidArgument, match=rf"^rank {last}: .*{text}"):
        DiLoCo(model, adamw(model), comm, **(settings if comm.rank == last else {}))


def test_dtypes_of_parameters_that_are_exchanged_together(comm, seed):
    model = made(seed)
    for parameter in model[2].parameters():
        parameter.data = parameter.data.float()
    with pytest.raises(InvalidArgument, match=r"exchanged together \(.*\) must share one dtype, got float32, float64"):
        DiLoCo(model, adamw(model), comm)


def test_unlike_models_and_settings_are_refused(comm, seed):
    if comm.size == 1:
        pytest.skip("needs another rank")
    odd = comm.rank == comm.size - 1
    model = nn.Linear(5, 7 if odd else 6)
    with pytest.raises(Disagreement, match=r"tensor 0 is weight \[7, 5\] float32, expected weight \[6, 5\]"):
        DiLoCo(model, adamw(model), comm)
    model = made(seed)
    with pytest.raises(Disagreement, match="every=3"):
        DiLoCo(model, adamw(model), comm, every=3 if odd else 4)
    with pytest.raises(InvalidArgument, match="the optimizer must have all parameters"):
        DiLoCo(model, adamw(model[0] if odd else model), comm)
    with pytest.raises(InvalidArgument, match=r"needs a torch\.nn\.Module and its"):
        DiLoCo(model, None if odd else adamw(model), comm)
    model = made(seed).to("meta") if odd else made(seed)
    with pytest.raises(BufferRefused, match=rf"rank {comm.size - 1}: .* got one on meta"):
        DiLoCo(model, adamw(model), comm)


def test_a_closure_goes_to_the_inner_optimizer(comm, seed):
    model = made(seed)
    inner = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)
    diloco = DiLoCo(model, inner, comm, every=2)

    def closure():
        inner.zero_grad()
        loss = model(batch(seed, 0, comm.rank)).pow(2).mean()
        loss.backward()
        return loss

    with pytest.raises(InvalidArgument, match=r"takes no closure: pass it to the inner optimizer's step\(closure\)"):
        diloco.step(closure)
    for _ in range(4):
        inner.step(closure)
        diloco.step()
    assert diloco.steps == 4 and len(set(comm.allgather(bits(model)))) == 1
    diloco.close()


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
def test_a_worker_whose_parameters_are_not_finite(comm, seed, nonfinite, delay):
    model = made(seed)
    diloco = DiLoCo(model, adamw(model), comm, every=2, delay=delay, nonfinite=nonfinite, scheme="topk:density=0.5")
    before, last = bits(model), comm.size - 1
    if comm.rank == last:
        with torch.no_grad():
            model[2].bias[1] = torch.nan
    for _ in range(2 + delay - 1):
        diloco.step()
    if nonfinite == "raise":
        with pytest.raises(NonFiniteGradient, match=f"^rank {last}: "):
            diloco.step()
        with diloco.outer_parameters():
            assert bits(model) == before
    else:
        diloco.step()
        assert diloco.skipped and bits(model) == before and diloco.memory_norm() == 0
    diloco.close()


@pytest.mark.parametrize("scheme", ["dense", "topk:density=0.25", "int8:memory=residual"])
@pytest.mark.parametrize("by_step", [True, False])
def test_no_fragment_moves_where_another_is_refused(comm, by_step, scheme):
    """Nor does what it has not sent, so the call may be repeated."""
    results = []
    for fails in (False, True):
        w = {name: np.zeros(4) for name in "abc"}
        diloco = ArrayDiLoCo(w, comm, every=1 if by_step else 10, scheme=scheme, fragments=3, outer_lr=0.5,
                             outer_momentum=0.9)
        call = diloco.step if by_step else diloco.synchronize
        for again in (False, True):
            for value in w.values():
                value -= np.arange(1.0, 5.0)
            if fails and again:
                kept, w["c"][0] = w["c"].copy(), np.nan
                with pytest.raises(NonFiniteGradient):
                    call()
                w["c"][:] = kept
            call()
        results.append({name: value.tolist() for name, value in w.items()})
        diloco.close()
    assert results[0] == results[1]


def test_a_refused_exchange_beside_another_in_flight(comm):
    """The refused one goes back by itself: the other has the communicator."""
    w = {name: np.zeros(200_000) for name in "ab"}
    diloco = ArrayDiLoCo(w, comm, every=4, scheme="topk:density=0.25", fragments=2, delay=3, outer_lr=1.0,
                         outer_momentum=0.0, merge=1.0)
    refused = []
    for step in range(20):
        for value in w.values():
            value -= np.linspace(1, 4, 200_000)
        if step == 5:  # in which a's exchange begins
            w["a"][0] = np.nan
        try:
            diloco.step()
        except NonFiniteGradient:
            refused.append(step)
            w["a"][:] = 0
            diloco.step()
    assert refused and all(np.isfinite(value).all() for value in w.values())
    diloco.close()


@pytest.mark.parametrize("error", [ValueError, RuntimeError, InvalidArgument])
def test_whatever_refuses_one_fragment_the_others_keep_their_memory(comm, error):
    w = {name: np.zeros(4) for name in "abc"}
    diloco = ArrayDiLoCo(w, comm, every=10, scheme="topk:density=0.25", fragments=3)
    for value in w.values():
        value -= np.arange(1.0, 5.0)
    read = diloco._own.read

    def failing(name):
        if name == "c" and comm.rank == 0:
            raise error("gone")
        return read(name)

    diloco._own.read = failing
    with pytest.raises(error, match="gone"):
        diloco.synchronize()
    assert diloco.memory_norm() == 0
    diloco.close()


@pytest.mark.parametrize("delay", [0, 1])
def test_a_parameter_that_one_rank_has_changed_in_shape(comm, seed, delay):
    model, last = made(seed), comm.size - 1
    diloco = DiLoCo(model, adamw(model), comm, every=2, delay=delay)
    if comm.rank == last:
        model[0].bias.data = torch.zeros(4, dtype=torch.float64)
    for _ in range(2 + delay - 1):
        diloco.step()
    with pytest.raises(ValueError, match=f"^rank {last}: .*shape"):
        diloco.step()
    diloco.close()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_steps_in_float32(comm, seed, dtype):
    model = made(seed, dtype)
    inner = torch.optim.SGD(model.parameters(), lr=0.05)
    diloco = DiLoCo(model, inner, comm, every=3)
    train(model, inner, diloco, seed, comm.rank, range(6))
    assert all(value.dtype == torch.float32 for name, value in diloco.state_dict().items() if name.startswith("theta/"))
    outer = {name[6:]: value for name, value in diloco.state_dict().items() if name.startswith("theta/")}
    assert all(torch.equal(parameter, outer[name].to(dtype)) for name, parameter in model.named_parameters())
    diloco.close()


def test_a_memory_format_other_than_c_order_and_a_frozen_parameter(comm, seed):
    torch.manual_seed(seed + comm.rank)
    model = nn.Sequential(nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last), nn.BatchNorm2d(4))
    model[1].bias.requires_grad_(False)
    inner = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.1)
    diloco = DiLoCo(model, inner, comm, every=2)
    for step in range(4):
        inner.zero_grad()
        model(torch.randn(3, 2, 5, 5)).pow(2).mean().backward()
        inner.step()
        diloco.step()
        assert (len({text.tobytes() for text in comm.allgather(model[0].weight.detach().numpy())}) == 1) == (
            step % 2 == 1 or comm.size == 1)
    assert len(set(comm.allgather(model[1].bias.detach().numpy().tobytes()))) == 1
    assert model[0].weight.is_contiguous(memory_format=torch.channels_last)
    diloco.close()


def test_an_inner_optimizer_that_averages_gradients_within_a_node(comm, world, seed):
    """DiLoCo between pairs of ranks, data parallel within one."""
    if comm.size != 4:
        pytest.skip("needs four ranks")
    node, across = world.Split(comm.rank // 2, comm.rank), world.Split(comm.rank % 2, comm.rank)
    model = made(seed)
    inner = DistributedOptimizer(adamw(model), model.named_parameters(), node)
    diloco = DiLoCo(model, inner, across, every=3)
    train(model, inner, diloco, seed, comm.rank, range(4))
    assert len(set(node.allgather(bits(model)))) == 1 and len(set(world.allgather(bits(model)))) == 2
    diloco.synchronize()
    assert len(set(world.allgather(bits(model)))) == 1
    diloco.close()
    inner.close()


def test_averaged_gradients_at_first(comm, seed):
    """The inner optimizer goes on by its own gradients, with its moments, where the averaging one is closed."""
    model, twin = made(seed), made(seed)
    inner, moments = adamw(model), adamw(twin)
    warm = DistributedOptimizer(inner, model.named_parameters(), comm)
    for step in range(4):
        inner_step(model, warm, batch(seed, step, comm.rank))
    warm.close()
    assert len(set(comm.allgather(bits(model)))) == 1
    twin.load_state_dict(model.state_dict())
    moments.load_state_dict(copy.deepcopy(inner.state_dict()))  # shared otherwise
    diloco = DiLoCo(model, inner, comm, every=3)
    for step in (4, 5):
        for one, optimizer in ((model, inner), (twin, moments)):
            inner_step(one, optimizer, batch(seed, step, comm.rank))
        diloco.step()
    assert bits(model) == bits(twin)
    diloco.synchronize()
    assert len(set(comm.allgather(bits(model)))) == 1 and bits(model) != bits(twin)
    diloco.close()


def test_the_sparse_scheme_sends_what_it_says(comm, seed):
    model = made(seed, torch.float32)
    inner = adamw(model)
    diloco = DiLoCo(model, inner, comm, every=3, scheme=SPARSE)
    sent = []
    for step in range(6):
        train(model, inner, diloco, seed, comm.rank, [step])
        sent.append((diloco.payload_bits > 0, 0 < diloco.density < 0.4))
    assert sent == [(False, False), (False, False), (True, True)] * 2
    assert diloco.memory_norm() > 0
    diloco.close()


def test_another_communicator_of_fewer_ranks(comm, world, seed):
    """As survivors do: an outer step that one of them has done is done by all; error memories stay."""
    if comm.size == 1:
        pytest.skip("needs another rank")
    model = made(seed, torch.float32)
    inner = adamw(model)
    diloco = DiLoCo(model, inner, comm, every=4, scheme=SPARSE, fragments=2, delay=1)
    train(model, inner, diloco, seed, comm.rank, range(6))
    state = diloco.state_dict()  # with the mean of the first fragment, whose outer step is still to come
    left = world.Split(0 if comm.rank < comm.size - 1 else MPI.UNDEFINED, comm.rank)
    if left == MPI.COMM_NULL:
        return
    if left.rank == left.size - 1:
        train(model, inner, diloco, seed, comm.rank, [6])
    memories = [value for name, value in state.items() if name.endswith("residual")]
    assert len(memories) == 2 and all(value.any() for value in memories)
    diloco.replace_comm(left)
    state = diloco.state_dict()
    assert all(map(torch.equal, memories, [value for name, value in state.items() if name.endswith("residual")]))
    assert (state["steps"], state["fragment 0/rounds"], state["fragment 1/rounds"]) == (7, 2, 1)
    common = [value.numpy().tobytes() for name, value in state.items() if name.startswith(("theta/", "velocity/"))]
    assert len(set(left.allgather(b"".join(common)))) == 1
    train(model, inner, diloco, seed, comm.rank, range(7, STEPS))
    diloco.synchronize()
    assert len(set(left.allgather(bits(model)))) == 1
    diloco.close()


def test_ranks_cannot_be_left_out_with_slices_of_nodes(comm, seed):
    model = made(seed)
    diloco = DiLoCo(model, adamw(model), comm, scheme="topk:nodes=yes")
    with pytest.raises(InvalidArgument, match="Take nodes=no"):
        diloco.replace_comm(comm)
