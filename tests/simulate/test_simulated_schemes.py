"""Every scheme runs on arrays without elements; assumptions about the elements are consistent and reported."""

import operator
import random
import sys

import numpy as np
import pytest

import mpicomp
from mpicomp import schemes
from mpicomp._util.partition import pieces
from mpicomp.allreduce.segments import EAGER_BYTES
from mpicomp.errors import InvalidArgument
from mpicomp.ops.block_codes import BLOCK, block_codes_nbytes
from mpicomp.schemes import Scheme
from mpicomp.schemes.exchanges import EXCHANGES, hops
from mpicomp.schemes.memories import MEMORIES
from mpicomp.simulate import Machine, Place, Wire, predict, program_of, replay, roles, simulated, steps
from mpicomp.simulate import program as programs
from mpicomp.simulate.comm import Script
from mpicomp.simulate.ghost import Ghost, Unknown
from mpicomp.simulate.ghost_ops import KERNELS, SAMPLED, GhostOps
from mpicomp.simulate.index_spacing import Spread, joined, union
from mpicomp.simulate.models import Model, named
from mpicomp.simulate.tape import POOL, WORK

MODEL = Model("three", (("matrix", (60, 50), 1.0), ("norm", (77,), 0.0), ("matrix", (40, 20), 1.0)))
VARIANTS = ("scalecom:beta=0.1,values=float16", "scalecom:layers=per-tensor", "topk-global:density=0.05",
            "topk:codec=sign", "topk:warmup=10", "topk:memory=shifted", "topk:memory=update", "onebit:exchange=gather",
            "topk:memory=adam-update,dense=norm", "topk:memory=ef21,dense=norm",
            "oktopk:layers=per-tensor", "oktopk:period=1", "oktopk:memory=error-reset", "gtopk:values=float16",
            "gtopk:layers=per-tensor,memory=none", "sketchsgd:columns=16", "onebit:codec=levels", "dgc:dense=norm+last",
            "scalecom:memory=error-reset", "localsgd:period=1", "localsgd:period=2")  # fmt: skip
ALL = [*(name for name in schemes.names() if name != "auto"), *VARIANTS]  # which chooses by the clock
PACE = Machine(Wire(1e-3, 1e6), Wire(1e-3, 1e6), 1, {"copy": 1e-6, "step": 1e-6})


def program(text, model=MODEL, size=4, algorithm="auto"):
    return program_of(text, model, Place(0, size, 1), algorithm)


@pytest.mark.parametrize("text", ALL)
def test_every_scheme_runs_to_its_end(text):
    for size in (1, random.choice((2, 3, 4, 5, 7))):
        mixed = program(text, size=size)
        kinds = [mixed, *mixed.mixed]
        assert sum(one.share for one in kinds) == pytest.approx(1) and mixed.name == text
        for one in kinds:
            times = replay(one, PACE)
            assert np.all(times.finish >= times.local) and np.all(times.local > 0)
        assert max(one.bytes_sent.min() for one in kinds) > 0 or size == 1


OF_SLICES = [name for name in schemes.names() if Scheme.parse(name).slices and name != "auto"]


@pytest.mark.parametrize("text", OF_SLICES)
@pytest.mark.parametrize(("size", "per_node"), [(4, 2), (12, 4)])
def test_every_message_between_slices_finds_its_rank(text, size, per_node):
    """Slices with unlike matrices have unlike numbers of calls; in a tree ranks have unlike numbers of messages."""
    of_slices = program_of(text, MODEL, Place(0, size, per_node))
    for one in (of_slices, *of_slices.mixed):
        assert np.all(replay(one, PACE).finish > 0)
    assert "all slices are taken to be alike" in of_slices.notes


@pytest.mark.parametrize("text", ["int8", "fp8", "natural", "stochastic-rounding", "onebit"])
def test_ranks_without_a_piece_know_what_the_others_send(text):
    """Whose codes have heads that are not sent for a piece without elements."""
    short = program_of(text, Model("vector", (("vector", (2,), 0.0),)), Place(0, 3, 3))
    assert np.all(short.bytes_sent > 0) and np.all(replay(short, PACE).finish > 0)


@pytest.mark.parametrize("text", [*OF_SLICES, "dense:nodes=yes", "half:nodes=yes"])
@pytest.mark.parametrize("n", [12, 17, 40])
def test_ranks_of_a_node_do_the_same_with_what_their_slices_found(text, n):
    """Some slices of a short vector are empty, or so short that they are sent as they are and others as lists."""
    of_slices = program_of(text, Model("vector", (("vector", (n,), 0.0),)), Place(0, 12, 4))
    for one in (of_slices, *of_slices.mixed):
        assert np.all(replay(one, PACE).finish > 0)


def test_whole_vectors_are_simulated_where_nodes_have_unequal_numbers_of_ranks():
    by_default, whole = (program_of(text, MODEL, Place(0, 6, 4)) for text in ("topk", "topk:nodes=no"))
    assert all(np.array_equal(a, b) for a, b in zip(by_default.tables, whole.tables, strict=True))
    assert any("since not all nodes have as many" in note for note in by_default.notes)
    with pytest.raises(InvalidArgument, match="expected a multiple of 4 ranks, got 6"):
        program_of("topk:nodes=yes", MODEL, Place(0, 6, 4))


@pytest.mark.parametrize("text", ["topk:density=0.1", "scalecom:chunk=8", "gtopk:density=0.1", "int8",
                                  "oktopk:density=0.1"])
def test_of_many_nodes_one_rank_stands_for_all_slices(monkeypatch, text):
    """All slices and pieces have equally many elements."""
    model = named("16384")
    each = program_of(text, model, Place(0, 16, 4))
    monkeypatch.setattr(programs, "FEW", 3)
    shared = program_of(text, model, Place(0, 16, 4))
    for a, b in zip([each, *each.mixed], [shared, *shared.mixed], strict=True):
        np.testing.assert_allclose(b.bytes_sent.max(), a.bytes_sent.max(), rtol=steps.MOST_MORE)
        np.testing.assert_allclose(replay(b, PACE).finish.max(), replay(a, PACE).finish.max(), rtol=steps.MOST_MORE)
    assert any("own work: recorded on" in note for note in shared.notes)


def test_every_part_is_among_those_that_ran():
    ran = [Scheme.parse(text).part_names for text in [*ALL, "auto"]]
    for kind, registry in (("exchange", EXCHANGES), ("memory", MEMORIES)):
        assert {names[kind] for names in ran} == set(registry)


def test_a_choice_by_the_clock_is_refused():
    """Without options its name is that of the dense algorithm that `auto` picks: commands ask `simulated` first."""
    for call, text in ((program, "auto:error=0.5"), (simulated, "auto")):
        with pytest.raises(InvalidArgument, match=r"auto.* chooses while it runs, .*: simulate its candidates"):
            call(text)


def test_a_merge_sends_k_pairs_up_the_tree_and_down():
    k, size = 100, random.choice((5, 8, 11))
    sent, agreement = program(f"gtopk:k={k}", named("10000"), size).bytes_sent, 16 * (size - 1).bit_length()
    assert (sent - agreement).sum() == 2 * (size - 1) * 8 * k


@pytest.mark.parametrize("size", [2, 4, 8])
def test_owners_of_regions_get_and_give_k_pairs_in_all(size):
    k, pair = 50 * size, 8
    mixed = program(f"oktopk:k={k},period=10", named(str(1000 * size)), size, "ring")
    both_ways, agreement = 2 * (k - k // size) * pair, 16 * (size - 1).bit_length()
    lengths, counts = 16 * (size - 1), program_of("native", named("6"), Place(0, size, 1)).bytes_sent
    assert (mixed.bytes_sent - agreement - counts - lengths == both_ways).all() and mixed.share == 0.9
    (estimating,) = mixed.mixed
    assert estimating.messages[0] > 30 * (size.bit_length() - 1) + mixed.messages[0]  # a count for each bit
    assert estimating.bytes_sent[0] < mixed.bytes_sent[0] + 200 * 8 * size


def test_a_prediction_is_the_mean_over_a_period():
    """Local SGD sends once in so many steps, and then as a dense all-reduce does."""
    model, period = named("100000"), random.randint(3, 40)
    local = predict(program(f"localsgd:period={period}", model), PACE, 1.0)
    each, dense = (predict(program(text, model), PACE, 1.0) for text in ("localsgd:period=1", "dense"))
    assert local.bytes_sent == round(each.bytes_sent / period) and each.bytes_sent == dense.bytes_sent
    assert dense.exchange / period < local.exchange < dense.exchange / period + 2 * local.local
    assert any(f"a period of {period} steps" in note for note in local.notes)


def test_steps_after_a_warm_up_and_outside_of_critical_regimes():
    plain = program("topk").bytes_sent.tolist()
    assert program("topk:warmup=100").bytes_sent.tolist() == plain == program("accordion").bytes_sent.tolist()


def test_arrays_that_go_dense_are_added_as_they_are():
    """A bucket is laid out as in a reducer: 77 elements of the norm by an all-reduce of their own."""
    size = 4
    sent, dense = (program(f"randomk:k=20,dense={rule}", size=size, algorithm="ring").bytes_sent
                   for rule in ("none", "norm"))
    tail = program_of("ring", named("77"), Place(0, size, 1)).bytes_sent
    assert (dense - sent).tolist() == tail.tolist()


@pytest.mark.parametrize(("text", "note"), [
    ("oktopk", "known thresholds to let k pass"), ("gtopk", "choose independently"), ("onebit", "all-to-all"),
    ("sidco", "first threshold"), ("adacomp", "of every bin 5"), ("accordion", "critical"),
    ("stochastic-rounding", "largest magnitude"), ("threshold:k=7", "let 7 elements pass"),
    ("topk:warmup=9", "warm-up"),
])  # fmt: skip
def test_what_is_assumed_is_said(text, note):
    assert any(note in one for one in program(text).notes)


@pytest.mark.parametrize("size", [4, 8, 16, 64])
def test_of_many_ranks_one_stands_for_all_where_regions_are_equal(monkeypatch, size):
    model, k = named(str(1000 * size)), 24 * size
    each = program(f"oktopk:k={k}", model, size)
    monkeypatch.setattr(programs, "FEW", 2)
    one = program(f"oktopk:k={k - 2}", model, size)
    assert one.uniform and not each.uniform and one.name == f"oktopk:k={k - 2}"
    assert any(f"{k} elements sent instead of {k - 2}" in note for note in one.notes)
    for a, b, off in zip([one, *one.mixed], [each, *each.mixed], (1e-12, steps.MOST_MORE), strict=True):
        assert a.share == b.share and (b.messages == a.messages[0]).all()
        np.testing.assert_allclose(a.bytes_sent[0], b.bytes_sent, rtol=off)  # where regions are cut by an all-reduce
        np.testing.assert_allclose(replay(a, PACE).finish, replay(b, PACE).finish, rtol=off)  # it is stretched


def test_unlike_ranks_are_refused_before_each_is_recorded(monkeypatch):
    """Regions of 6 or 7 pairs, 20 ranks: were it not refused, the work of all of them would be looked at."""
    told, size = [], 20
    monkeypatch.setattr(programs, "FEW", 2)
    monkeypatch.setattr(programs, "MOST_EVENTS", 20 * 100)
    with pytest.raises(InvalidArgument, match=r"of 20 ranks that do not all do the same .*of Ok-Topk: k"):
        programs.of_scheme("oktopk:k=130", named("20000"), Place(0, size, 1), say=told.append)
    assert len({text for text in told if text.startswith("own work of rank")}) < size // 2


@pytest.mark.parametrize("text", ["oktopk:k=192", "onebit"])
def test_what_would_not_fit_into_memory_is_refused_before_it_is_played(monkeypatch, text):
    size, late = 8, np.arange(8.0)
    monkeypatch.setattr(programs, "FEW", 2)
    one = program(text, named("6400"), size)
    played = replay(one, PACE, late).finish
    monkeypatch.setattr(sys.modules["mpicomp.simulate.replay"], "MOST_BYTES", size * (size - 1) * 40)
    with pytest.raises(InvalidArgument, match=r"each of 8 ranks, .* at most about [5-7] ranks"):
        replay(one, PACE, late)
    assert replay(one, PACE).finish.max() <= played.max()  # one stands for all


def test_a_leader_that_is_not_rank_0_is_seen_among_many(monkeypatch):
    text, size = "scalecom:memory=error-reset,period=12,chunk=8", 16
    each = program(text, named("1600"), size)
    monkeypatch.setattr(programs, "FEW", 2)
    monkeypatch.setattr(roles, "sample", lambda size: [1, 2])
    shared = program(text, named("1600"), size)
    for a, b in zip([each, *each.mixed], [shared, *shared.mixed], strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a.tables, b.tables, strict=True))


@pytest.mark.parametrize("size", [16, 21])
@pytest.mark.parametrize("text", ["gtopk:k=40", "gtopk:k=30,layers=per-tensor"])
def test_of_many_ranks_some_stand_for_those_in_their_place_of_a_tree(monkeypatch, text, size):
    each = program(text, named("4032"), size)
    monkeypatch.setattr(programs, "FEW", 2)
    shared = program(text, named("4032"), size)
    assert any("places of a binomial tree" in note for note in shared.notes)
    assert all(np.array_equal(x, y) for x, y in zip(each.tables, shared.tables, strict=True))


def test_ranks_that_only_seem_to_be_in_one_place_are_recorded_one_by_one():
    def record(rank):
        script = Script()
        script.tape.work("copy", 1 + (rank % 5 == 3))
        return script

    script, how = roles.scripts(record, 100, {0})
    assert how is None and all(script(rank) == record(rank) for rank in range(100))


@pytest.mark.parametrize("text", ["sketchsgd:k=503", "randomk:k=503"])
def test_all_reduces_of_many_ranks_are_taken_for_slightly_longer_ones(monkeypatch, text):
    model, size = named("80000"), 8
    each = program(text, model, size)
    monkeypatch.setattr(programs, "FEW", 2)
    one = program(text, model, size)
    assert one.uniform and not each.uniform
    assert any("is taken for one of" in note for note in one.notes)
    for kind in ("finish", "local"):
        exact, stretched = (getattr(replay(program, PACE), kind).max() for program in (each, one))
        assert exact <= stretched <= (1 + steps.MOST_MORE) * exact


def test_a_part_of_ones_own_that_asks_for_more_is_refused_in_one_sentence(monkeypatch):
    def select(self, u, step):
        return step.ops.fancy(u.gradient)

    monkeypatch.setattr("mpicomp.schemes.selectors.top_k.TopK.select", select)
    with pytest.raises(InvalidArgument, match=r"topk cannot be simulated: the cost of fancy .* docs/simulate.md"):
        program("topk")


def test_a_part_of_ones_own_that_calls_a_method_of_numpy_is_refused(monkeypatch):
    monkeypatch.setattr("mpicomp.schemes.codecs.float.Float.encode", lambda _self, values, *_: values.tobytes())
    with pytest.raises(InvalidArgument, match=r"cannot be simulated: arrays have no elements, .* tobytes"):
        program("topk")


@pytest.mark.parametrize("compute", [lambda x: x * 0.9, lambda x: 0.9 * x, lambda x: x / 2, lambda x: -x,
                                     lambda x: x > 0, lambda x: operator.imul(x, 0.9)])
def test_a_part_of_ones_own_that_computes_with_arrays_is_refused(monkeypatch, compute):
    monkeypatch.setattr("mpicomp.schemes.codecs.float.Float.encode", lambda _self, values, *_: compute(values))
    with pytest.raises(InvalidArgument, match=r"cannot be simulated: arrays have no elements to compute with; use .*"):
        program("topk")


@pytest.mark.parametrize("scheme", ["topk:selector=first", "randomk:selector=first-of-all"])
def test_a_selector_of_ones_own_that_makes_numpy_arrays_is_refused(monkeypatch, scheme):
    """The example of docs/quickstart/compressor.md is one."""
    monkeypatch.setitem(schemes.PARTS, "selector", dict(schemes.PARTS["selector"]))

    class First:
        name, reference, options = "first", "-", ()

        def select(self, u, ctx):
            return np.arange(u.n // 2, dtype=ctx.ops.index_dtype(u.n))

        def expand(self, wire, ctx):
            return wire

    class FirstOfAll:
        name, reference, options = "first-of-all", "-", ()

        def sketch(self, u, ctx):
            return ctx.ops.empty(0, ctx.dtype)

        def pick(self, total, ctx):
            return np.arange(ctx.n // 2, dtype=ctx.ops.index_dtype(ctx.n))

    for part in (First, FirstOfAll):
        mpicomp.register_part("selector")(part)
    with pytest.raises(InvalidArgument, match=r"cannot be simulated: indices must be made by .*, got ndarray"):
        program_of(scheme, named("100"), Place(0, 4, 1))


@pytest.mark.parametrize("name", ["gather", "dense"])
def test_an_exchange_of_ones_own_is_simulated_as_what_it_inherits_from(monkeypatch, name):
    mine = type("Mine", (EXCHANGES[name],), {"name": "mine", "__module__": "theirs"})  # whose results are checked
    monkeypatch.setitem(EXCHANGES, "mine", mine)
    scheme, model, place = {"gather": "topk", "dense": "dense"}[name], named("1000"), Place(0, 4, 1)
    own = program_of(f"{scheme}:exchange=mine", model, place)
    assert own.bytes_sent.tolist() == program_of(scheme, model, place).bytes_sent.tolist()


# ---- how lists lie

def lists(n, counts, seed):
    """Lists of random places, each a union of even parts, and their spreads."""
    generator = np.random.default_rng(seed)
    cuts = np.linspace(0, n, len(counts) + 1).astype(int)
    parts = list(zip(cuts[:-1], cuts[1:], counts, strict=True))
    places = [np.sort(generator.choice(np.arange(a, b), c, replace=False)) for a, b, c in parts]
    return np.concatenate(places), joined([Spread.even(*part) for part in parts])


def test_a_spread_tells_of_random_lists_what_numpy_finds():
    n, seed = 60_000, random.randrange(1 << 30)
    (a, told_a), (b, told_b) = lists(n, (3000, 200, 900), seed), lists(n, (1500, 1500), seed + 1)
    bounds = [0, n // 7, n // 2, n]  # the limits: six standard deviations of chance and more
    np.testing.assert_allclose(told_a.below(bounds), np.searchsorted(a, bounds), atol=160)
    np.testing.assert_allclose(told_a.at(np.array([10, 2000, 3500])), a[[10, 2000, 3500]], atol=2000)
    both = np.union1d(a, b)
    got = union([told_a, told_b], [a.size, b.size], n)
    assert got.counts[-1] == pytest.approx(both.size, rel=0.02)
    np.testing.assert_allclose(got.below(bounds), np.searchsorted(both, bounds), atol=180)
    part = told_a.cut(100, 3100)
    assert part.counts[-1] == 3000 and part.width == pytest.approx(np.ptp(a[100:3100]), abs=5000)
    chosen = told_a.chosen(Spread.even(0, a.size, 410))
    np.testing.assert_allclose(chosen.below(bounds), np.searchsorted(a[::10], bounds), atol=18)
    assert joined([told_a, None]) is None and joined([told_a, told_a]) is None  # which does not ascend


def test_two_lists_have_in_common_what_chance_gives_or_all():
    ops = GhostOps(lambda kernel, elements: None, 10_000)
    vector = Ghost(ops, 10_000, np.float32)
    a, b = (ops.top_k(None, vector, [(0, 10_000)], [k]) for k in (500, 400))
    together = ops.union([a, b], 10_000)
    assert together.size == 10_000 - 10_000 * 95 * 96 // 10_000 == 880
    assert [one.size for one in ops.common(a, b)] == [20, 20]
    assert [one.size for one in ops.common(a, together)] == [500, 500]


def test_an_unknown_element_is_never_made_up():
    ops = GhostOps(lambda kernel, elements: None, 10)
    with pytest.raises(Unknown, match="no elements to read"):
        ops.empty(10, np.float32)[3]


def test_kinds_of_steps_add_up_to_a_period():
    for text, expected in (("oktopk", [(1, 31 / 32), (0, 1 / 32)]), ("oktopk:period=1", [(0, 1.0)]),
                           ("topk", [(0, 1.0)]), ("localsgd:period=5", [(0, 0.8), (4, 0.2)]),
                           ("oktopk:memory=error-reset,period=4", [(1, 0.5), (0, 0.25), (3, 0.25)])):
        assert steps.kinds(Scheme.parse(text)) == expected


def test_top_k_of_few_elements_takes_another_way_than_of_many():
    """Short lists cost as in `ops/cpu/top_k.cpp`; a file without their seconds has those of the long way."""
    done = []
    ops = GhostOps(lambda kernel, elements: done.append((kernel, elements)), 1 << 20)
    for n in (SAMPLED - 1, SAMPLED, 3 * SAMPLED):
        ops.top_k(None, Ghost(ops, n, np.float32), [(0, n)], [5])
    assert done == [("top_k_short", SAMPLED - 1), ("top_k_least", 1), ("top_k", 0), ("top_k_least", 1),
                    ("top_k", 2 * SAMPLED)]
    seconds = dict(zip(KERNELS, Machine(Wire(0, 1), Wire(0, 1), 1, {"copy": 1.0, "top_k": 2.0}).rates(), strict=True))
    assert (seconds["top_k_short"], seconds["top_k_least"], seconds["step"], seconds["add"]) == (2, 2 * SAMPLED, 0, 1)


def passes(text, n, bandwidth):
    """Elements of every kernel over those of the vector, and the messages of a rank among four hosts."""
    found = program_of(text, named(str(n)), Place(0, 4, 1, bandwidth))
    table = found.tables[0]
    work = table[np.isin(table[:, 0], (WORK, POOL))]
    return {KERNELS[kernel]: work[work[:, 1] == kernel, 3].sum() / n for kernel in set(work[:, 1])
            if KERNELS[kernel] not in ("step", "call")}, found.messages[0]  # fmt: skip


def test_codes_are_added_where_they_are_decoded():
    """Two hops of codes: vector and mean encoded, four pieces and the mean decoded, one's sum scaled and looked at."""
    n = 1 << 20
    expected = {"count_nonfinite": 0.25, "encode_blocks": 1.25, "decode_blocks": 2.0, "scale": 0.25}
    assert passes("int8", n, 1e10)[0] == expected
    assert passes("int8:memory=residual", 64 * n, 1e10)[0].keys() == {*expected, "axpby", "dense_update"}


def test_codes_for_a_slow_network_are_cut_into_messages_without_an_answer():
    n = 1 << 20
    work, slow = passes("int8", n, 1e8)
    assert work == passes("int8", n, 1e10)[0]
    whole = block_codes_nbytes(BLOCK, "int8")
    segments = pieces(0, block_codes_nbytes(n // 4, "int8"), hops.LEAST_BYTES // whole * whole)
    messages = sum(-(-(end - begin) // EAGER_BYTES) for begin, end in segments)
    assert slow == 2 * 3 * messages + 4  # and those of two agreements


@pytest.mark.parametrize("codec", ["one-bit", "levels"])
def test_pieces_of_many_ranks_are_taken_to_hold_as_many_columns(monkeypatch, codec):
    model, size = Model("two", (("matrix", (500, 160), 0.0), ("vector", (4003,), 0.0))), random.choice((8, 11))
    each = program(f"onebit:codec={codec}", model, size)
    monkeypatch.setattr(programs, "FEW", 2)
    one = programs.of_scheme(f"onebit:codec={codec}", model, Place(0, size, 1))
    assert one.uniform and not each.uniform
    assert any("so all are alike" in note for note in one.notes)
    assert one.messages[0] == each.messages.max()
    assert one.bytes_sent[0] == pytest.approx(each.bytes_sent.mean(), rel=0.03)
    assert replay(one, PACE).finish.max() == pytest.approx(replay(each, PACE).finish.max(), rel=0.03)


def test_long_recordings_say_where_they_are(monkeypatch):
    monkeypatch.setattr(programs, "FEW", 2)
    monkeypatch.setattr(sys.modules["mpicomp.simulate.replay"], "SAID", 10)  # a function of that name hides it
    told = []
    for what in ("onebit", "scalecom:chunk=8"):
        one = program_of(what, named("1600"), Place(0, 8, 1), say=told.append)
        replay(one, PACE, say=told.append)
    assert {text.rstrip("0123456789% ") for text in told} >= {"own work of rank", "messages of rank"}
    assert any(text.startswith("playing event 10 of") for text in told)
    assert any(text.startswith("playing, 0%") for text in told)
