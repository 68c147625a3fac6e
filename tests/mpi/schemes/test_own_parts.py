"""A user's part that fails on one rank: all ranks raise before the agreement, and after it if the part reports it."""

from typing import NamedTuple

import numpy as np
import pytest

import mpicomp
from mpicomp import schemes
from mpicomp.schemes.interfaces import Exchange
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
