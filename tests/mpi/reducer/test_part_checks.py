"""`mpicomp check-part`: a part that keeps every promise passes, and each broken one is caught with its reason."""

import itertools
import re

import numpy as np
import pytest
from mpi4py import MPI
from own_exchange import Filled, Message

import mpicomp
from mpicomp import schemes
from mpicomp.errors import InvalidArgument
from mpicomp.reducer import part_checks
from mpicomp.schemes.codecs import CODECS
from mpicomp.schemes.exchanges import EXCHANGES
from mpicomp.schemes.interfaces import Selector
from mpicomp.schemes.memories import MEMORIES
from mpicomp.schemes.schedules import WarmUp
from mpicomp.schemes.values import Exchanged, Mean, Sent

pytestmark = pytest.mark.filterwarnings("ignore::mpicomp.errors.SchemeWarning")


class Good(Selector):
    """Every seventh element, shifted by one in each step."""

    name, reference, options = "mine", "a test", ()

    def select(self, u, ctx):
        return np.arange(ctx.number % 7, u.n, 7, dtype=ctx.ops.index_dtype(u.n))

    def expand(self, wire, ctx):
        return wire


class Blind(Good):
    """Claims to select NaN first."""

    finds_nonfinite = True


class Drawn(Good):
    def select(self, u, ctx):
        return np.flatnonzero(np.random.default_rng().random(u.n) < 0.3).astype(ctx.ops.index_dtype(u.n))


class Counting(Good):
    steps = itertools.count()

    def select(self, u, ctx):
        return np.arange(next(self.steps) % 7, u.n, 7, dtype=ctx.ops.index_dtype(u.n))


class Listing(Good):
    """Every promise ends in the same error."""

    def select(self, u, ctx):
        return list(super().select(u, ctx))


class Whole(Good):
    """Forgets that a vector may be shorter than seven elements."""

    def select(self, u, ctx):
        return np.arange(7, dtype=ctx.ops.index_dtype(u.n))


class Short(Good):
    def select(self, u):
        return None


class Dropping(MEMORIES["residual"]):
    """Drops what was not sent."""

    name = "mine"

    def update(self, u, sent, ctx):
        u.memory[:] = 0
        yield


class Forgetting(MEMORIES["residual"]):
    """Doubles every gradient after the third step, which its state does not count."""

    name = "mine"

    def __init__(self, beta):
        super().__init__(beta)
        self.steps = 0

    def compensate(self, gradient, ctx):
        self.steps += 1
        return super().compensate(gradient * (1 + (self.steps > 3)), ctx)


class Leaking(MEMORIES["residual"]):
    """Returns its state without a copy."""

    name = "mine"

    def state(self, ops):
        residual = self._kept.get("residual")
        return {} if residual is None else {"residual": residual}


class Early(MEMORIES["residual"]):
    """Changes before the ranks have agreed."""

    name = "mine"

    def compensate(self, gradient, ctx):
        u = super().compensate(gradient, ctx)
        u.memory[0] += 1e-6
        return u


class OfItsRank(CODECS["float"]):
    """Decodes other values on every rank."""

    name, options = "mine", ()

    def __init__(self):
        super().__init__(values="float64")

    def decode(self, codes, place, ctx):
        return super().decode(codes, place, ctx) * np.float32(1 + ctx.comm.rank)

    def sends_unchanged(self, dtype):
        return False


class InPlace(CODECS["sign"]):
    """Scales the caller's gradient."""

    name = "mine"

    def encode(self, values, place, ctx):
        values *= 2
        return super().encode(values, place, ctx)


class Allowing(EXCHANGES["gather"]):
    """Counts no element that is not finite."""

    name = "mine"

    def choose(self, us, ctx):
        choice = super().choose(us, ctx)
        return choice._replace(nonfinite=[0] * len(us))


class ByRanks(Filled):
    """Divides by the ranks in place of the workers."""

    def scaled(self, total, ctx):
        return total / ctx.comm.size


class OfOneWorker(Filled):
    """Forgets that a rank may have several workers."""

    def combine(self, message, ctx):
        return super().combine(message._replace(sent=message.sent[:1]), ctx)._replace(sent=message.sent)


class Overwriting(Filled):
    """Adds up in the caller's gradient."""

    takes = "all"

    def encode(self, us, choice, ctx):
        return Message([Sent(None, u.to_read(None, ctx.ops)) for u in us])

    def combine(self, message, ctx):
        total = message.sent[0].values
        ctx.comm.allreduce_in_place(total, ctx.algorithm)
        return Exchanged(Mean(None, ctx.scale(total), ctx.n), message.sent, 8 * total.nbytes)


class Unscaled(Filled):
    """Encodes without a scale that all ranks share."""

    codecs = "any"

    def encode(self, us, choice, ctx):
        places = [ctx.place(worker, indices) for worker, indices in enumerate(choice.lists)]
        values = [u.at(indices, ctx.ops) for u, indices in zip(us, choice.lists, strict=True)]
        codes = [ctx.codec.encode(one, place, ctx) for one, place in zip(values, places, strict=True)]
        return Message([Sent(place.indices, ctx.codec.decode(one, place, ctx))
                        for one, place in zip(codes, places, strict=True)])


def rows_of(monkeypatch, kind, part, scheme=None, only=None):
    if only is not None:
        monkeypatch.setattr(part_checks, "PROMISES", [one for one in part_checks.PROMISES if one.name == only])
    monkeypatch.setitem(schemes.PARTS[kind], part.name, part)
    found, world = [], mpicomp.Comm(MPI.COMM_WORLD)
    part_checks.check(part_checks.subject(part, scheme), lambda: mpicomp.Comm(MPI.COMM_WORLD), world, found.append)
    world.Free()
    return found


@pytest.mark.parametrize(("kind", "part", "scheme"), [("selector", Good, None), ("selector", Good, "topk:beta=1"),
                                                      ("exchange", Filled, None)])
def test_a_good_part_passes(comm, monkeypatch, kind, part, scheme):
    rows = rows_of(monkeypatch, kind, part, scheme)
    assert [row.promise for row in rows] == [part_checks.PROTOCOL, *(one.name for one in part_checks.PROMISES)]
    assert all(row.passed and row.ranks == comm.size for row in rows)


BROKEN = [
    ("selector", Short, "protocol", r"select\(self, u\) must take \(self, u, ctx\)"),
    ("selector", Whole, "any length and dtype", "topk:selector=mine: .*(indices|elements|out of)"),
    ("selector", Drawn, "same when repeated", "two runs on the same gradients differ from step 0 on"),
    ("selector", Counting, "reducers independent", r"a second reducer of the same scheme changes the mean of step \d"),
    ("selector", Blind, "NaN refused", r"nan in element \d+ of rank \d+ raised no NonFiniteGradient"),
    ("memory", Dropping, "sent + kept = came in", r"came in, .* was sent, 0 is kept"),
    ("memory", Forgetting, "exact resume", "a reducer that loads the state of step 6 has another mean in step 6"),
    ("memory", Leaking, "exact resume", "later steps write into the saved state: memory/0/residual"),
    ("memory", Early, "NaN refused", "a step that was refused changed memory/0/residual"),
    ("codec", InPlace, "gradients unchanged", r"step 0 wrote into the caller's gradient"),
    ("exchange", Allowing, "NaN refused", "nan in element 0 of rank"),
    ("exchange", ByRanks, "sent + kept = came in", "summed over ranks of 2 workers"),
    ("exchange", OfOneWorker, "sent + kept = came in", "summed over ranks of 2 workers"),
    ("exchange", Unscaled, "any length and dtype", "codec scaled-integer has no scale yet: an exchange that encodes"),
]


@pytest.mark.parametrize(("kind", "part", "promise", "text"), BROKEN, ids=[case[1].__name__ for case in BROKEN])
def test_a_broken_part_is_caught(comm, monkeypatch, kind, part, promise, text):
    row = rows_of(monkeypatch, kind, part, only=promise)[-1]
    assert (row.promise, row.passed) == (promise, False)
    assert re.search(text, row.reason), row.reason
    assert row.advice


def test_an_error_of_all_promises_is_reported_once(comm, monkeypatch):
    _, first, *others = rows_of(monkeypatch, "selector", Listing)
    assert first.passed is False
    assert "must give indices as an array of int32" in first.reason
    assert {(row.passed, row.reason) for row in others} == {(None, "not judged: the error of any length and dtype")}


class Undefined(WarmUp):
    """Returns no density that can be."""

    name, options = "mine", ()

    def __init__(self):
        super().__init__(0, 1.0, 1)

    def density(self, target, span, number):
        return self.value


@pytest.mark.parametrize("value", [float("nan"), 0.0, -1.0, 25, None])
@pytest.mark.parametrize("scheme", ["topk", "scalecom", "threshold"])
def test_a_density_that_cannot_be_is_refused_with_its_schedule(comm, monkeypatch, scheme, value):
    Undefined.value = value
    monkeypatch.setitem(schemes.PARTS["schedule"], "mine", Undefined)
    reducer = mpicomp.Reducer(comm, f"{scheme}:schedule=mine")
    with pytest.raises(InvalidArgument, match=f"schedule mine must return a density .*, got {value} for span 0 in "
                                              r"step 0: correct its density\(\)"):
        reducer.reduce(np.ones(20, np.float32))


def test_a_codec_that_differs_per_rank_is_caught(comm, monkeypatch):
    row = rows_of(monkeypatch, "codec", OfItsRank, only="same on all ranks")[-1]
    assert row.passed is (comm.size == 1)
    assert comm.size == 1 or "ranks have different means in step 0" in row.reason


def test_an_exchange_that_adds_up_in_the_gradient_is_caught(comm, monkeypatch):
    row = rows_of(monkeypatch, "exchange", Overwriting, only="gradients unchanged")[-1]
    assert row.passed is (comm.size == 1)
    assert comm.size == 1 or "step 0 wrote into the caller's gradient" in row.reason


def test_a_class_that_is_not_registered_is_refused():
    with pytest.raises(InvalidArgument, match=r"Good is no registered part: put @mpicomp.register_part"):
        part_checks.subject(Good)


def test_a_part_that_no_scheme_takes_is_refused(monkeypatch):
    monkeypatch.setitem(schemes.PARTS["selector"], "mine", Good)
    monkeypatch.setitem(part_checks.HOSTS, "selector", ("gtopk",))
    with pytest.raises(InvalidArgument, match=r"no scheme takes selector mine: .*name one by --scheme"):
        part_checks.subject(Good)
