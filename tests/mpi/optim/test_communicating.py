"""1-bit Adam and 0/1 Adam against simulations of all workers in one process, written from the papers in float64."""

import numpy as np
import pytest

import mpicomp
from mpicomp import optim
from mpicomp._util.partition import partition
from mpicomp.errors import Disagreement, InvalidArgument, NonFiniteGradient
from mpicomp.optim.communicating import ONE_BIT

SHAPES = {"weight": (6, 5), "bias": (4,)}
BETAS, FLOOR = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-6}, 0.8
LR, UNSEEN = 0.1, 2  # element of the bias whose gradient is zero in the first steps
STEPS = 24
EXACT = "dense"  # for momenta: what the papers' C is does not matter to the algorithms


def gradient(seed, worker, step):
    rng = np.random.default_rng([seed, worker, step])
    g = {name: rng.standard_normal(shape) for name, shape in SHAPES.items()}
    if step < STEPS // 2:
        g["bias"][UNSEEN] = 0
    return g


def start():
    return {name: np.ones(shape) for name, shape in SHAPES.items()}


def rate(step):
    return LR / (1 + step % 3)


def share(comm, extra):
    counts, displs = partition(comm.size + extra, comm.size)
    return range(displs[comm.rank], displs[comm.rank] + counts[comm.rank])


def mine(seed, workers, step):
    every = [gradient(seed, worker, step) for worker in workers]
    return every[0] if len(every) == 1 else {name: np.stack([g[name] for g in every]) for name in SHAPES}


def mean_of(seed, workers, step, name):
    return np.mean([gradient(seed, worker, step)[name] for worker in range(workers)], axis=0)


def everywhere(comm, weights):
    """The weights, which must have the same bits on all ranks."""
    mine = {name: w.tobytes() for name, w in weights.items()}
    assert all(one == mine for one in comm.allgather(mine))
    return weights


def one_bit_adam(seed, workers, warmup, name, decay=0.0):
    """w after every step; with an exact C the momentum of the mean is the mean of the momenta."""
    b1, b2, eps = BETAS.values()
    w, m, s = np.ones(SHAPES[name]), np.zeros(SHAPES[name]), np.zeros(SHAPES[name])
    for t in range(1, STEPS + 1):
        g = mean_of(seed, workers, t - 1, name)
        m = b1 * m + (1 - b1) * g
        if t <= warmup:
            s = b2 * s + (1 - b2) * g**2
        m = np.where((t <= warmup) | (s > 0), m, 0)
        least = 0 if t <= warmup else FLOOR * s.mean()
        root = np.sqrt(np.maximum(s, least) / (1 - b2 ** min(t, warmup))) + eps
        w = (1 - rate(t - 1) * decay) * w - rate(t - 1) * np.where(s > 0, m / (1 - b1**t) / root, 0)
        yield w


@pytest.mark.parametrize("extra", [0, 1])  # workers a rank: one, or one and two
@pytest.mark.parametrize(("warmup", "decay"), [(5, 0.0), (15, 0.5)])
def test_one_bit_adam_with_exact_momenta(comm, seed, extra, warmup, decay):
    workers, weights = share(comm, extra), start()
    optimizer = optim.OneBitAdam(comm, weights, scheme=EXACT, workers=len(workers), warmup=warmup, weight_decay=decay,
                                 floor=FLOOR, **BETAS)  # fmt: skip
    expected = {name: one_bit_adam(seed, comm.size + extra, warmup, name, decay) for name in SHAPES}
    for step in range(STEPS):
        optimizer.step(mine(seed, workers, step), rate(step))
        for name, w in weights.items():
            np.testing.assert_allclose(w, next(expected[name]), rtol=1e-9, atol=1e-12)
    if warmup < STEPS // 2 and not decay:
        assert weights["bias"][UNSEEN] == 1  # masked


@pytest.mark.parametrize("scheme", ["dense", "topk:density=0.4"])
def test_the_warm_up_is_adam(comm, seed, scheme):
    weights, own = start(), start()
    optimizer = optim.OneBitAdam(comm, weights, gradient_scheme=scheme, warmup=STEPS, **BETAS)
    adam, reducer = optim.Adam(own, **BETAS), mpicomp.Reducer(comm, scheme)
    for step in range(STEPS):
        optimizer.step(gradient(seed, comm.rank, step), LR)
        adam.step(reducer.reduce(gradient(seed, comm.rank, step)), LR)
    for name in SHAPES:
        np.testing.assert_allclose(weights[name], own[name], rtol=1e-9, atol=1e-12)
    assert optimizer.reducers["momentum"].step == 0


def test_momenta_by_one_bit_are_those_of_a_reducer(comm, seed):
    """The update is that by C of the local momentum, with both error memories of the scheme."""
    weights, b1 = start(), BETAS["beta1"]
    optimizer = optim.OneBitAdam(comm, weights, warmup=STEPS // 2 + 1, **BETAS)
    other = mpicomp.Reducer(comm, ONE_BIT)
    for step in range(STEPS):
        g = gradient(seed, comm.rank, step)
        if optimizer.steps > STEPS // 2:
            state = optimizer.state_dict()
            s = {name: state[f"second/{name}"] for name in SHAPES}
            roots = {name: np.sqrt(np.maximum(s[name], 0.1 * s[name].mean()) / (1 - BETAS["beta2"] ** (STEPS // 2 + 1)))
                     + BETAS["eps"] for name in SHAPES}  # fmt: skip
            step = other.reduce({name: (b1 * state[f"first/{name}"] + (1 - b1) * g[name]) / roots[name]
                                 for name in SHAPES})  # fmt: skip
            optimizer.step(g, LR)
            after = optimizer.state_dict()
            for name in SHAPES:
                np.testing.assert_allclose(after[f"first/{name}"], step[name] * roots[name], rtol=1e-12)
            assert all(np.array_equal(after[f"second/{name}"], state[f"second/{name}"]) for name in SHAPES)
        else:
            optimizer.step(g, LR)
    everywhere(comm, weights)


def zero_one_adam(seed, workers, name, warmup, kappa, doubling, longest):
    """w of every worker after every step, and whether it had an exchange: T_v and T_u as the paper writes them."""
    b1, b2, eps = BETAS.values()
    shape = (workers, *SHAPES[name])
    x, m, u, v = np.ones(shape), np.zeros(shape), np.zeros(shape), np.zeros(SHAPES[name])
    base, rates, learned, last = np.ones(SHAPES[name]), 0.0, 0, 0
    learning, at, gap, count = set(), 0, 1, 0
    while at < warmup:
        learning.add(at)
        at, count = at + gap, count + 1
        if count == kappa:
            gap, count = 2 * gap, 0
    for t in range(STEPS):
        g = np.array([gradient(seed, worker, t)[name] for worker in range(workers)])
        if t in learning:
            v, learned = b2 * v + (1 - b2) * g.mean(axis=0) ** 2, learned + 1
        floored = np.maximum(v, FLOOR * v.mean())
        root = np.where(v > 0, np.sqrt(floored / (1 - b2**learned)) + eps, np.inf) * (1 - b1 ** (t + 1))
        m = b1 * m + (1 - b1) * g
        u, rates = u + rate(t) * m, rates + rate(t)
        interval = 1 if t < warmup else min(longest, 2 ** ((t - warmup) // doubling))
        if exchange := t - last >= interval or t < warmup:
            common = u.mean(axis=0) / rates * (v > 0)
            base = base - rates * common / root
            x[:], m[:], u, rates, last = base, common, np.zeros(shape), 0.0, t
        else:
            x = x - rate(t) * m / root
        yield x, exchange


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("options", [{"warmup": 8, "kappa": 2, "doubling": 4, "longest": 4},
                                     {"warmup": 14, "kappa": 16, "doubling": 3, "longest": 2}])
def test_zero_one_adam_with_exact_messages(comm, seed, extra, options):
    total = comm.size + extra
    workers, weights = share(comm, extra), start()
    optimizer = optim.ZeroOneAdam(comm, weights, scheme=EXACT, workers=len(workers), floor=FLOOR, **options,
                                  **BETAS)  # fmt: skip
    expected = {name: zero_one_adam(seed, total, name, **options) for name in SHAPES}
    for step in range(STEPS):
        exchanges = optimizer.exchanges
        optimizer.step(mine(seed, workers, step), rate(step))
        for name, w in weights.items():
            x, exchange = next(expected[name])
            assert exchanges == exchange, step
            np.testing.assert_allclose(w, x[list(workers)].mean(axis=0), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(("kind", "options", "exact", "one_bit"), [
    (optim.OneBitAdam, {}, (1, 2, 3), range(4, 13)),
    (optim.ZeroOneAdam, {"doubling": 1, "longest": 4}, (1, 2, 3), (4, 8, 12)),
    (optim.ZeroOneAdam, {"kappa": 1, "doubling": 1, "longest": 4}, (1, 2), (3, 4, 8, 12)),
])  # fmt: skip
def test_a_step_has_one_exchange_at_most_and_one_bit_is_short(comm, seed, kind, options, exact, one_bit):
    n, sent = 40_000, {"gradients": [], "momentum": []}
    weights = {"w": np.zeros(n, np.float32)}
    optimizer = kind(comm, weights, warmup=3, **options)
    for step in range(12):
        before = {name: reducer.step for name, reducer in optimizer.reducers.items()}
        optimizer.step({"w": np.random.default_rng([seed, comm.rank, step]).standard_normal(n).astype(np.float32)}, LR)
        for name, reducer in optimizer.reducers.items():
            sent[name] += [step + 1] * (reducer.step - before[name])
        if step + 1 in sent["momentum"]:
            assert optimizer.reducers["momentum"].stats.bytes_sent < 2 * n / 8 + 5000
    assert sent == {"gradients": list(exact), "momentum": list(one_bit)}
    everywhere(comm, weights)


CASES = [(optim.OneBitAdam, {"warmup": 8}), (optim.ZeroOneAdam, {"warmup": 6, "doubling": 4, "longest": 3})]


@pytest.mark.parametrize(("kind", "options"), CASES)
@pytest.mark.parametrize("stop", [5, 13, 18])
def test_resume_is_bit_exact(comm, seed, kind, options, stop):
    weights = start()
    through = kind(comm, weights, **options)
    for step in range(STEPS):
        if step == stop:
            state, then = through.state_dict(), {name: w.copy() for name, w in weights.items()}
        through.step(gradient(seed, comm.rank, step), LR)
    resumed = kind(comm, then, **options)
    resumed.load_state_dict(state)
    for step in range(stop, STEPS):
        resumed.step(gradient(seed, comm.rank, step), LR)
    assert all(then[name].tobytes() == weights[name].tobytes() for name in SHAPES)


@pytest.mark.parametrize(("kind", "options"), CASES)
@pytest.mark.parametrize("step", [2, 12])
def test_a_refused_step_changes_nothing(comm, seed, kind, options, step):
    weights = start()
    optimizer = kind(comm, weights, **options)
    for t in range(step):
        optimizer.step(gradient(seed, comm.rank, t), LR)
    while not getattr(optimizer, "exchanges", True):
        optimizer.step(gradient(seed, comm.rank, step), LR)
    before = {name: w.copy() for name, w in weights.items()}
    bad = gradient(seed, comm.rank, step)
    if comm.rank == comm.size - 1:
        bad["weight"][1, 1] = np.nan
    with pytest.raises(NonFiniteGradient, match=f"rank {comm.size - 1}"):
        optimizer.step(bad, LR)
    if comm.rank == comm.size - 1:
        bad = {"weight": bad["weight"]}
    with pytest.raises(InvalidArgument, match=f"rank {comm.size - 1}.*must have the parameters' names"):
        optimizer.step(bad, LR)
    if comm.size > 1:
        with pytest.raises(Disagreement):
            optimizer.step(gradient(seed, comm.rank, step), LR * (1 + comm.rank))
    for name, w in weights.items():
        np.testing.assert_array_equal(w, before[name])
    optimizer.step(gradient(seed, comm.rank, step), LR)
    assert all(np.isfinite(w).all() for w in weights.values())


def test_an_error_of_a_local_step_is_raised_by_the_next_exchange(comm, seed):
    """Also after a resume; and then the ranks have the same parameters again, and go on."""
    options = {"warmup": 2, "doubling": 1, "longest": 4, "weight_decay": 0.1, **BETAS}
    weights = start()
    optimizer = optim.ZeroOneAdam(comm, weights, **options)
    for step in range(2):
        optimizer.step(gradient(seed, comm.rank, step), LR)
    while optimizer.exchanges:
        optimizer.step(gradient(seed, comm.rank, 2), LR)
    bad = gradient(seed, comm.rank, 3)
    if comm.rank == 0:
        bad["bias"][1] = np.inf
    optimizer.step(bad, LR)
    resumed_weights = {name: w.copy() for name, w in weights.items()}
    resumed = optim.ZeroOneAdam(comm, resumed_weights, **options)
    resumed.load_state_dict(optimizer.state_dict())
    for one in (optimizer, resumed):
        while not one.exchanges:
            one.step(gradient(seed, comm.rank, 4), LR)
        with pytest.raises(NonFiniteGradient, match=r"rank 0: bias\[1\] is not finite in the local step"):
            one.step(gradient(seed, comm.rank, 5), LR)
        one.step(gradient(seed, comm.rank, 5), LR)
    np.testing.assert_equal(resumed_weights, everywhere(comm, weights))
    assert all(np.isfinite(w).all() for w in weights.values())


def failing():
    raise ValueError("no data")


@pytest.mark.parametrize("refused", [failing, dict])
def test_a_gradient_that_one_rank_cannot_give_in_a_local_step(comm, seed, refused):
    weights = start()
    optimizer = optim.ZeroOneAdam(comm, weights, warmup=1, doubling=1, longest=4, **BETAS)
    while optimizer.exchanges:
        optimizer.step(gradient(seed, comm.rank, 0), LR)
    optimizer.step(refused if comm.rank == 0 else gradient(seed, comm.rank, 1), LR)
    with pytest.raises((ValueError, InvalidArgument), match="rank 0: "):
        for _ in range(4):
            optimizer.step(gradient(seed, comm.rank, 2), LR)
    optimizer.step(gradient(seed, comm.rank, 2), LR)
    everywhere(comm, weights)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_learning_rates_that_differ_between_ranks_are_refused(comm, seed, kind, options):
    """Also if ranks only give them to other parameters, or in steps without an exchange."""
    if comm.size == 1:
        pytest.skip("one rank cannot disagree")
    names = sorted(SHAPES, reverse=comm.rank > 0)
    optimizer = kind(comm, start(), **options)
    with pytest.raises(Disagreement, match="learning rates"):
        optimizer.step(gradient(seed, comm.rank, 0), dict(zip(names, (0.1, 0.2), strict=True)))
    with pytest.raises(Disagreement, match="learning rates"):
        for step in range(STEPS):
            optimizer.step(gradient(seed, comm.rank, step), 0.1 + 0.1 * comm.rank * (step >= options["warmup"]))


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_nonfinite_gradients_may_be_skipped(comm, seed, kind, options):
    weights, other = start(), start()
    optimizer, clean = (kind(comm, w, nonfinite="skip", **options) for w in (weights, other))
    for step in range(STEPS):
        g = gradient(seed, comm.rank, step)
        if step % 5 == 2:
            bad = {**g, "bias": np.full(4, np.nan if comm.rank == 0 else 1.0)}
            if getattr(optimizer, "exchanges", True):
                optimizer.step(bad, LR)  # nothing happens on any rank
                for name, w in weights.items():
                    np.testing.assert_array_equal(w, other[name])
        optimizer.step(g, LR)
        clean.step(g, LR)
    while not getattr(optimizer, "exchanges", True):  # a local step leaves it out alone
        optimizer.step({**g, "bias": np.full(4, np.inf if comm.rank == 0 else 1.0)}, LR)
    optimizer.step(g, LR)
    assert all(np.isfinite(w).all() for w in weights.values())
    everywhere(comm, weights)


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_bad_arguments_and_states(comm, seed, kind, options):
    with pytest.raises(InvalidArgument, match="has no option 'warm'"):
        kind(comm, start(), warm=3)
    with pytest.raises(InvalidArgument, match="warmup must be"):
        kind(comm, start(), warmup=0)
    with pytest.raises(InvalidArgument, match="takes parameters of float32, float64, got float16 of bias"):
        kind(comm, {**start(), "bias": np.ones(4, np.float16)})
    if comm.size > 1:
        with pytest.raises(Disagreement):
            kind(comm, start(), warmup=3 + comm.rank)
    optimizer = kind(comm, start(), **options)
    state = optimizer.state_dict()
    for wrong in ({**state, "name": "adam"}, {name: value for name, value in state.items() if name != "reducers"}):
        with pytest.raises(InvalidArgument, match="the state must"):
            optimizer.load_state_dict(wrong)
    for absent in ("steps", "second/bias", *["moved"] * (kind is optim.ZeroOneAdam)):
        wrong = {name: value for name, value in state.items() if name != absent or comm.rank < comm.size - 1}
        with pytest.raises(InvalidArgument, match=f"rank {comm.size - 1}: the state must be"):
            optimizer.load_state_dict({"steps": 9, **wrong} if "steps" in wrong else wrong)
    with pytest.raises(InvalidArgument, match="the state must be of"):
        kind(comm, {"w": np.ones(3)}, **options).load_state_dict(state)
    if comm.size > 1:  # saved before and after a local step, in which no reducer has one
        with pytest.raises(Disagreement, match=f"disagree on a collective.*a state of {kind.name} at step 8"):
            optimizer.load_state_dict({**state, "steps": 8 + (comm.rank == 0)})
        assert optimizer.steps == 0


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_small_second_moments_do_not_make_long_steps(comm, seed, kind, options):
    """An element whose gradients grow after the warm-up, as those of rare rows of an embedding do."""
    weights = {"w": np.zeros(200)}
    optimizer = kind(comm, weights, **options)
    for step in range(30):
        g = np.random.default_rng([seed, comm.rank, step]).standard_normal(200)
        g[:3] *= 1e-6 if step < options["warmup"] else 1
        optimizer.step({"w": g}, LR)
    assert np.abs(weights["w"]).max() < 30 * LR * 10


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_an_empty_array_warns_of_nothing(comm, seed, kind, options):
    weights = {"none": np.zeros((0, 3)), **start()}
    optimizer = kind(comm, weights, **options)
    for step in range(STEPS):
        optimizer.step({"none": np.zeros((0, 3)), **gradient(seed, comm.rank, step)}, LR)
    assert np.isfinite(weights["weight"]).all()
