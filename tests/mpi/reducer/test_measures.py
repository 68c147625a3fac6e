"""The measures of a step, against NumPy with all workers in one process."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

import mpicomp
from mpicomp._util.partition import partition

N, STEPS = 80, 4
NAMES = {"density", "wire_bytes", "compression_error", "total_error", "contraction", "memory_norm", "memory_cosine",
         "hamming", "build_up"}


def gradient(seed, worker, step, n=N):
    return np.random.default_rng([seed, worker, step]).integers(-48, 49, n).astype(np.float32)


def top(u, k):
    return set(np.argsort(-np.abs(u), kind="stable")[:k].tolist())


def chosen(scheme, u):
    """The set each worker would send by itself."""
    options = scheme.options
    if scheme.name == "scalecom":
        chunk = options["chunk"]
        return [{at + int(np.argmax(np.abs(one[at : at + chunk]))) for at in range(0, N, chunk)} for one in u]
    if scheme.name == "threshold":
        return [set(np.flatnonzero(np.abs(one) >= options["lam"]).tolist()) for one in u]
    if scheme.name == "dense":
        return [set(range(N)) for _ in u]
    return [top(one, options["k"]) for one in u]


def expected(u, own, sent, memory):
    """The measures but for wire_bytes and total_error; ``memory`` after the step."""
    left = u.copy()
    for one, indices in zip(left, sent, strict=True):
        one[list(indices)] = 0
    units = [m / np.linalg.norm(m) for m in memory if m.any()]
    pairs = [a @ b for a, b in itertools.combinations(units, 2)]
    count = sum(map(len, sent))
    error = np.mean((left**2).sum(axis=1))
    return {
        "density": count / u.size,
        "compression_error": error,
        "contraction": error / np.mean((u**2).sum(axis=1)),
        "memory_norm": np.mean(np.linalg.norm(memory, axis=1)),
        "memory_cosine": np.mean(pairs) if pairs else 1.0,
        "hamming": np.mean([len(a ^ b) / max(1, len(a) + len(b)) for a, b in zip(own, sent, strict=True)]),
        "build_up": len(set.union(*sent)) / count if count else 0.0,
    }


def check(measures, wanted):
    assert set(measures) == NAMES
    for name, value in wanted.items():
        np.testing.assert_allclose(measures[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


class Late:
    """An exchange that says only at its end what was sent."""

    name = "late"

    def __init__(self, exchange):
        self.exchange, self.choose, self.check = exchange, exchange.choose, exchange.check
        self.state, self.load = exchange.state, exchange.load
        self.context, self.instead, self.observe = exchange.context, exchange.instead, exchange.observe
        self.may_refuse = exchange.may_refuse

    def encode(self, us, choice, ctx):
        return SimpleNamespace(sent=None, message=self.exchange.encode(us, choice, ctx))

    def combine(self, message, ctx):
        return self.exchange.combine(message.message, ctx)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("extra", [0, 1])  # workers a rank: one, or one and two
@pytest.mark.parametrize("text", ["dense", "dense:memory=residual", "scalecom:chunk=10", "scalecom:chunk=10,beta=0.5",
                                  "topk-global:k=5", "topk-global:k=5,memory=none", "threshold:lam=40"])
def test_measures_are_those_of_numpy(comm, seed, text, extra, late):
    total = comm.size + extra
    counts, displs = partition(total, comm.size)
    mine = slice(displs[comm.rank], displs[comm.rank] + counts[comm.rank])
    scheme = mpicomp.Scheme.parse(text)
    reducer = mpicomp.Reducer(comm, text, workers=counts[comm.rank], measures=1)
    if late:
        reducer._pipeline.exchange = Late(reducer._pipeline.exchange)
    memory, beta = np.zeros((total, N)), scheme.options.get("beta")
    total_error = 0.0
    for step in range(STEPS):
        g = np.array([gradient(seed, worker, step) for worker in range(total)])
        u = memory + g
        own = chosen(scheme, u)
        sent = [own[step % total]] * total if scheme.name == "scalecom" else own
        if beta is not None:
            kept = u.copy()
            for one, indices in zip(kept, sent, strict=True):
                one[list(indices)] = 0
            memory = (1 - beta) * memory + beta * kept
        reducer.reduce(g[mine] if counts[comm.rank] > 1 else g[mine.start])
        wanted = expected(u, own, sent, memory)
        total_error += wanted["compression_error"]
        check(reducer.stats.measures, {**wanted, "total_error": total_error,
                                       "wire_bytes": comm.allreduce(reducer.stats.bytes_sent) / comm.size})
        assert len(set(comm.allgather(tuple(reducer.stats.measures.items())))) == 1


def test_nothing_is_measured_where_not_asked(comm, seed):
    silent, measuring = (mpicomp.Reducer(comm, "topk:k=3", measures=m) for m in (0, 3))
    for step in range(7):
        g = gradient(seed, comm.rank, step)
        before = comm.traffic.bytes_sent
        mean = silent.reduce(g)
        assert silent.stats.measures == {}
        assert comm.traffic.bytes_sent - before == silent.stats.bytes_sent
        assert measuring.reduce(g).tobytes() == mean.tobytes()
        assert set(measuring.stats.measures) == (set() if step % 3 else NAMES)
        assert measuring.stats.bytes_sent == silent.stats.bytes_sent
    assert "measures/total_error" not in silent.state_dict()


@pytest.mark.parametrize("text", ["localsgd:period=2",
                                  "error-reset:selector=top-k,exchange=gather,between=nothing,period=2,k=4",
                                  "dgc:k=4,nesterov=yes", "topk:memory=shifted,k=4"])
def test_of_other_memories(comm, seed, text):
    reducer = mpicomp.Reducer(comm, text, measures=1)
    for step in range(4):
        reducer.reduce(gradient(seed, comm.rank, step))
        measures, state = reducer.stats.measures, reducer.state_dict()
        assert set(measures) == NAMES
        assert np.isfinite(list(measures.values())).all()
        norm = np.linalg.norm(state["memory/0/residual"])
        np.testing.assert_allclose(measures["memory_norm"], comm.allreduce(norm) / comm.size, rtol=1e-5)
        assert measures["hamming"] == 0
        if "dgc" in text or "shifted" in text:  # these memories keep exactly the unsent part of u
            np.testing.assert_allclose(measures["compression_error"], comm.allreduce(norm**2) / comm.size, rtol=1e-5)
        if text.startswith("localsgd"):
            assert measures["contraction"] == (0 if step % 2 else 1)
            assert measures["density"] == step % 2
            assert measures["build_up"] == (1 / comm.size if step % 2 else 0)
            assert (measures["wire_bytes"] > 0) == (comm.size > 1 and step % 2 == 1)


def test_the_error_of_long_vectors_is_that_of_the_memory(comm, seed):
    """Their second hop has another scale by the time the first hop's codes are decoded to be measured."""
    reducer = mpicomp.Reducer(comm, "int8:codec=scaled-integer,memory=residual,second=no", measures=1)
    n = reducer._ops.PIECE + 1
    reducer.reduce(np.random.default_rng([seed, comm.rank]).standard_normal(n, np.float32))
    kept = np.array([reducer.memory_norm() ** 2])
    comm.allreduce_in_place(kept)
    assert reducer.stats.measures["compression_error"] == pytest.approx(kept[0] / comm.size, rel=1e-3)


@pytest.mark.parametrize("text", ["dense", "topk:k=1,dense=1d", "localsgd"])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_nothing_to_measure_gives_no_nan(comm, text, n):
    reducer = mpicomp.Reducer(comm, text if n or "dense=" not in text else "topk:k=1", measures=1)
    for _ in range(2):
        reducer.reduce(np.zeros(n, np.float32))
        assert np.isfinite(list(reducer.stats.measures.values())).all()
        assert reducer.stats.measures["memory_cosine"] == 1


def test_a_skipped_step_is_not_measured(comm):
    reducer = mpicomp.Reducer(comm, "topk:k=1", nonfinite="skip", measures=1)
    reducer.reduce(np.full(3, np.nan, np.float32))
    assert reducer.stats.measures == {}
    reducer.reduce(np.ones(3, np.float32))
    assert reducer.stats.measures["total_error"] == 2


def test_total_error_goes_on_after_a_restart(comm, seed):
    def run(reducer, steps):
        for step in steps:
            reducer.reduce(gradient(seed, comm.rank, step))
        return reducer

    straight = run(mpicomp.Reducer(comm, "topk:k=3", measures=1), range(6))
    second = mpicomp.Reducer(comm, "topk:k=3", measures=1)
    second.load_state_dict(run(mpicomp.Reducer(comm, "topk:k=3", measures=1), range(3)).state_dict())
    run(second, range(3, 6))
    measured = [{**one.stats.measures, "wire_bytes": 0} for one in (second, straight)]
    assert measured[0] == measured[1]


class Recording:
    """Stands in for a recorder of a trace."""

    enabled = True
    doing = None

    def __init__(self):
        self.metrics = []

    def step_number(self, own):
        return own

    def metric(self, name, step, value):
        self.metrics.append((name, step, value))

    def spans(self, step, spans):
        pass

    def event(self, *args, **kwargs):
        pass


def test_measures_are_recorded(comm, seed):
    trace = Recording()
    reducer = mpicomp.Reducer(comm, "scalecom:chunk=8", measures=2, trace=trace)
    wanted = []
    for step in range(3):
        reducer.reduce(gradient(seed, comm.rank, step))
        wanted += [(name, step, value) for name, value in reducer.stats.measures.items()]
    assert trace.metrics == wanted
    assert {step for _, step, _ in wanted} == {0, 2}
