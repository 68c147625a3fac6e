"""Parts of users' own: their mistakes on one rank are raised on all, and selections travel in any form."""

from typing import NamedTuple

import numpy as np
import pytest

import mpicomp
from mpicomp import schemes
from mpicomp.errors import InvalidArgument
from mpicomp.schemes.interfaces import Exchange, Selector
from mpicomp.schemes.selectors import DENSITY, Counted, K
from mpicomp.schemes.values import Exchanged, Mean, Sent

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


class Chosen(NamedTuple):
    lists: list
    nonfinite: list


class Message(NamedTuple):
    sent: list


class Filled(Mistaken, Exchange):
    """The exchange of docs/quickstart/compressor.md, which reports an error of one rank to all."""

    name, reference, options = "told-filled", "a test", ()
    takes, codecs = "any", "float"

    def choose(self, us, ctx):
        lists = [ctx.select(u)[1] for u in us]
        return Chosen(lists, [ctx.overflows(u) for u in us])

    def encode(self, us, choice, ctx):
        error = None
        try:
            self.fail(ctx)
        except Exception as caught:
            error = caught
        ctx.comm.fail_together(error)
        return Message([Sent(indices, u.at(indices, ctx.ops)) for indices, u in zip(choice.lists, us, strict=True)])

    def combine(self, message, ctx):
        total = ctx.ops.zeros(ctx.n, ctx.dtype)
        for one in message.sent:
            ctx.add_at(total, one.indices, one.values)
        ctx.comm.allreduce_in_place(total, ctx.algorithm)
        return Exchanged(Mean(None, ctx.scale(total), ctx.n), message.sent, 8 * total.nbytes)


@pytest.mark.parametrize(("kind", "part"), [("selector", First), ("exchange", Filled)])
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
