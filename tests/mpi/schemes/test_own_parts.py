"""Parts of users' own: their mistakes on one rank are raised on all, and selections travel in any form."""

import numpy as np
import pytest
from own_exchange import Filled, Message

import mpicomp
from mpicomp import schemes
from mpicomp.checkpoint.redistribute import Keepers, redistribute
from mpicomp.errors import InvalidArgument, NonFiniteGradient
from mpicomp.schemes.interfaces import Selector
from mpicomp.schemes.selectors import DENSITY, Counted, K

N = 40


class Mistaken:
    """Fails in the second step of the last rank."""

    def fail(self, step):
        if step.number == 1 and step.comm.rank == step.comm.size - 1:
            raise ValueError("a mistake of its author")


class First(Mistaken, Counted):
    """The first k."""

    name, reference, options = "first-k", "a test", (DENSITY, K)

    def select(self, u, step):
        self.fail(step)
        return step.ops.arange(self.counts(step)[0])

    def expand(self, wire, step):
        return wire


class Told(Mistaken, Filled):
    """Reports an error of one rank to all."""

    name = "told-filled"

    def encode(self, us, choice, ctx):
        error = None
        try:
            self.fail(ctx)
        except Exception as caught:
            error = caught
        ctx.comm.fail_together(error)
        return super().encode(us, choice, ctx)


@pytest.mark.parametrize(("kind", "part"), [("selector", First), ("exchange", Told)])
def test_a_mistake_on_one_rank_is_raised_on_all_and_changes_nothing(comm, seed, kind, part, monkeypatch):
    monkeypatch.setitem(schemes.PARTS[kind], part.name, part)
    reducer, spared = (mpicomp.Reducer(comm, mpicomp.Scheme("topk", {kind: part.name, "k": 5})) for _ in range(2))
    grads = [np.random.default_rng([seed, comm.rank, step]).standard_normal(N) for step in range(3)]
    reducer.reduce(grads[0])
    before = reducer.state_dict()
    with pytest.raises(ValueError, match=f"rank {comm.size - 1}: a mistake of its author"):
        reducer.reduce(grads[1])
    np.testing.assert_equal(reducer.state_dict(), before)
    monkeypatch.setattr(Mistaken, "fail", lambda self, step: None)
    spared.reduce(grads[0])
    for step in (1, 2):
        np.testing.assert_array_equal(reducer.reduce(grads[step]), spared.reduce(grads[step]))


@pytest.mark.parametrize(("made", "text"), [
    (lambda mean: mean._replace(indices=np.zeros(2, np.int32), values=np.ones(2)), "must have indices that ascend"),
    (lambda mean: mean._replace(values=mean.values[:1]), f"with {N} values, got n={N} with 1"),
    (lambda mean: mean._replace(n=7), f"must be of n={N} elements"),
    (lambda mean: mean.values, "must return an Exchanged whose mean is a Mean, got Exchanged with ndarray"),
], ids=["twice", "short", "n", "array"])
def test_a_mean_that_does_not_fit_is_refused_before_memories_take_it(comm, made, text, monkeypatch):
    class Other(Filled):
        def encode(self, us, choice, ctx):
            self.sent = super().encode(us, choice, ctx).sent
            return Message(None)  # known once they are combined

        def combine(self, message, ctx):
            found = super().combine(Message(self.sent), ctx)
            return found._replace(mean=made(found.mean))

    monkeypatch.setitem(schemes.PARTS["exchange"], Other.name, Other)
    reducer = mpicomp.Reducer(comm, "topk:exchange=mine,k=5")
    with pytest.raises(InvalidArgument, match=text):
        reducer.reduce(np.ones(N))
    assert reducer.memory_norm() == 0


@pytest.mark.parametrize("verb", ["encode", "combine"])
def test_a_step_that_one_rank_alone_refuses_late_is_a_mistake(comm, verb, monkeypatch):
    """The others do not wait for it: they are in the all-reduce, or a step ahead."""
    def refuse(self, *_):
        raise NonFiniteGradient("too large")

    part = type("Late", (Filled,), {verb: refuse})
    monkeypatch.setitem(schemes.PARTS["exchange"], part.name, part)
    reducer = mpicomp.Reducer(comm, "topk:exchange=mine,k=5", nonfinite="skip")
    with pytest.raises(InvalidArgument, match="exchange mine refused a step that all ranks had agreed on"):
        reducer.reduce(np.ones(N))


class Keeping(Filled):
    """Keeps what it got of a step, each rank its own."""

    name = "keeping"

    def __init__(self):
        self.kept, self.aside = np.zeros(N), None

    def combine(self, message, ctx):
        self.kept[message.sent[0].indices] = 1 + ctx.comm.rank
        return super().combine(message, ctx)

    def state(self, ops):
        return {"kept": self.kept.copy()}

    def load(self, state):
        self.kept = state.get("kept", np.zeros(N))

    def set_aside(self, spans):
        self.aside = [(span, self.kept[slice(*span)].copy()) for span in spans]

    def put_back(self, ops):
        for span, values in self.aside:
            self.kept[slice(*span)] = values


def test_an_exchange_of_ones_own_sets_its_state_aside(comm, monkeypatch):
    monkeypatch.setitem(schemes.PARTS["exchange"], "keeping", Keeping)
    reducer = mpicomp.Reducer(comm, "topk:exchange=keeping,density=1")
    a, b = np.ones(N // 2), np.zeros(N - N // 2)
    with reducer.leaving_out(["b"]):
        reducer.reduce({"a": a, "b": b})
    kept = reducer.state_dict()["exchange/kept"]
    assert kept.tolist() == [1.0 + comm.rank] * len(a) + [0.0] * len(b)


def test_a_state_that_stays_on_its_rank_is_refused_on_another(comm, monkeypatch):
    monkeypatch.setattr(Keeping, "redistribution", (("kept", "stay"),), raising=False)
    monkeypatch.setitem(schemes.PARTS["exchange"], "keeping", Keeping)
    reducer = mpicomp.Reducer(comm, "topk:exchange=keeping,memory=none,density=1")
    reducer.reduce(np.ones(N))
    states = comm.allgather(reducer.state_dict())
    reducer.load_state_dict(states[comm.rank])
    if comm.size > 1:
        with pytest.raises(InvalidArgument, match="each rank loads the state that it saved"):
            reducer.load_state_dict(states[comm.rank - 1])
    had, now = Keepers([1] * comm.size), Keepers([1] * (comm.size + 1))
    with pytest.raises(InvalidArgument, match=f"exchange/kept is a rank's own .*, got {comm.size + 1} workers"):
        redistribute(states.__getitem__, had, now, 0, {"rank": 0, "ranks": comm.size + 1})


class Stride(Selector):
    """Every fourth element; a selection travels as one byte, its offset, if ``likeness`` describes that."""

    name, reference, options = "stride", "a test", ()
    broadcasts = True
    likeness = None

    def select(self, u, ctx):
        return np.array([ctx.number % 4], np.uint8)

    def expand(self, wire, ctx):
        return np.arange(int(wire[0]), ctx.n, 4, dtype=ctx.ops.index_dtype(ctx.n))

    def wire_like(self, ctx):
        return self.likeness


class Wrong(Stride):
    """Gives, on the last rank, indices that ``of`` makes of the right ones."""

    name = "wrong"

    def expand(self, wire, ctx):
        right = super().expand(wire, ctx)
        return self.of(right) if ctx.comm.rank == ctx.comm.size - 1 else right


@pytest.mark.parametrize("indices", ["auto", "plain", "gaps", "bitmap"])
@pytest.mark.parametrize("of", [lambda right: right[::-1].copy(), lambda right: np.repeat(right, 2)],
                         ids=["descending", "twice"])
def test_indices_that_do_not_ascend_are_refused_on_all_ranks(comm, of, indices, monkeypatch):
    monkeypatch.setitem(schemes.PARTS["selector"], "wrong", Wrong)
    monkeypatch.setattr(Wrong, "of", staticmethod(of), raising=False)
    reducer = mpicomp.Reducer(comm, f"topk:selector=wrong,indices={indices}")
    with pytest.raises(InvalidArgument, match=f"rank {comm.size - 1}: selector wrong must give indices that ascend"):
        reducer.reduce(np.ones(N))


@pytest.mark.parametrize("scheme", ["topk:switch=never,", "scalecom:"])
def test_a_compact_selection_travels_as_indices_if_it_has_no_wire_like(comm, seed, scheme, monkeypatch):
    monkeypatch.setitem(schemes.PARTS["selector"], "stride", Stride)
    grads = [np.random.default_rng([seed, comm.rank, step]).standard_normal(N) for step in range(4)]
    means, bits = [], []
    for likeness in (None, np.empty(1, np.uint8)):
        monkeypatch.setattr(Stride, "likeness", likeness)
        reducer = mpicomp.Reducer(comm, f"{scheme}selector=stride")
        means.append([reducer.reduce(grad) for grad in grads])
        bits.append(reducer.stats.payload_bits)
    np.testing.assert_array_equal(means[0], means[1])
    assert bits[0] > bits[1]


@pytest.mark.parametrize("scheme", ["topk", "scalecom"])
def test_a_selection_unlike_its_wire_like_is_refused_on_all_ranks(comm, scheme, monkeypatch):
    monkeypatch.setitem(schemes.PARTS["selector"], "stride", Stride)
    monkeypatch.setattr(Stride, "likeness", np.empty(2, np.uint8))
    reducer = mpicomp.Reducer(comm, f"{scheme}:selector=stride")
    with pytest.raises(InvalidArgument, match=r"rank 0: selector stride must select an array like .* 2 uint8, got 1"):
        reducer.reduce(np.ones(N))
