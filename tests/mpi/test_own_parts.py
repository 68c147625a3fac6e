"""A mistake in a part of one's own, on one rank alone: told to all before they agree, and after if the part says so."""

import numpy as np
import pytest

import mpicomp
from mpicomp import schemes
from mpicomp.schemes.exchanges import Stateless
from mpicomp.schemes.selectors import DENSITY, Counted, K
from mpicomp.types import Exchanged, Mean, Sent

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


class Filled(Mistaken, Stateless):
    """As in docs/quickstart/compressor.md, where what may fail on one rank is told to all."""

    name, reference, options = "told-filled", "a test", ()
    takes, codecs = "any", "float"

    def select(self, workers, step):
        self.chosen = [step.selector.expand(step.selector.select(u, step), step) for u in workers]
        return [step.overflows(u) for u in workers]

    def compress(self, workers, step):
        error = None
        try:
            self.fail(step)
        except Exception as caught:
            error = caught
        step.comm.fail_together(error)
        return [Sent(indices, u.at(indices, step.ops)) for indices, u in zip(self.chosen, workers, strict=True)]

    def exchange(self, workers, sent, step):
        total = step.ops.zeros(step.n, step.dtype)
        for one in sent:
            step.add_at(total, one.indices, one.values)
        step.comm.allreduce_in_place(total, step.algorithm)
        return Exchanged(Mean(None, step.scale(total), step.n), sent, 8 * total.nbytes)


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
