"""Parts and schemes of users' own: chosen like ours, refused with what is missing."""

import re

import numpy as np
import pytest
from mpi4py import MPI

import mpicomp
from mpicomp import schemes
from mpicomp.errors import InvalidArgument
from mpicomp.schemes import codecs, interfaces, selectors
from mpicomp.schemes.options import Option


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """Leave the registries to other tests as they are."""
    for kind, registry in schemes.PARTS.items():
        monkeypatch.setitem(schemes.PARTS, kind, dict(registry))
    monkeypatch.setattr("mpicomp.schemes.registry.COMPOSITIONS", dict(schemes.COMPOSITIONS))


def selector(**changed):
    """A fresh class that has all a selector needs, but for what is ``changed``; None leaves it out."""
    things = {
        "name": "mine", "reference": "-", "options": (Option("stride", int, 3, "elements apart", low=1),),
        "finds_nonfinite": False, "select": lambda *_: None, "expand": lambda *_: None,
        "__init__": lambda self, stride: setattr(self, "stride", stride), **changed,
    }  # fmt: skip
    return type("Mine", (), {name: thing for name, thing in things.items() if thing is not None})


def exchange(**changed):
    """A class with what an exchange needs."""
    verbs = dict.fromkeys(("choose", "encode", "combine"), lambda *_: None)
    return type("Mine", (), {"name": "mine", "reference": "a test", "options": (), "takes": "any", "codecs": "any",
                             "__init__": lambda self: None, **verbs, **changed})


def test_a_part_is_chosen_by_its_name_and_brings_its_options():
    part = mpicomp.register_part("selector")(selector())
    scheme = mpicomp.Scheme.parse("topk:selector=mine,stride=7")
    assert type(scheme.parts(1).selector) is part
    assert scheme.parts(1).selector.stride == 7
    with pytest.raises(InvalidArgument, match=re.escape("stride must be in [1, inf), got 0")):
        mpicomp.Scheme.parse("topk:selector=mine,stride=0")


def test_errors_and_tables_list_it():
    mpicomp.register_part("selector")(selector())
    with pytest.raises(InvalidArgument, match=r"selector must be one of .*, mine, got theirs"):
        mpicomp.Scheme.parse("topk:selector=theirs")
    assert "mine" in next(row["range"] for row in schemes.common_options() if row["name"] == "selector")


@pytest.mark.parametrize("part", [selectors.Counted, interfaces.Codec, interfaces.Exchange])
def test_bases_for_parts_are_there(part):
    assert part.__doc__


@pytest.mark.parametrize(("layers", "first"), [("per-tensor", [1, 0, 3, 4, 0, 0]), ("whole", [1, 2, 3, 0, 0, 0])])
def test_a_selector_chooses_from_each_span_as_many_as_the_density_says(layers, first):
    @mpicomp.register_part("selector")
    class First(selectors.Counted):
        name, reference, options = "first", "-", (selectors.DENSITY, selectors.K)

        def select(self, u, step):
            picked = [start + np.arange(k) for (start, _), k in zip(step.spans, self.counts(step), strict=True)]
            return np.concatenate(picked).astype(step.ops.index_dtype(u.n))

    reducer = mpicomp.Reducer(mpicomp.Comm(MPI.COMM_SELF), f"topk:selector=first,density=0.5,layers={layers}")
    mean = reducer.reduce([np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0, 6.0])])
    np.testing.assert_array_equal(np.concatenate(mean), first)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"expand": None}, "Mine has no expand"),
        ({"reference": None, "select": None}, "Mine has no reference, select"),
        ({"sketch": lambda *_: None}, "Mine has no pick"),
        ({"name": "top-k"}, "there is a selector named 'top-k' already"),
        *(({"name": name}, "the name of a selector must be a text without blanks")
          for name in ("a,b", "", "a/b", "a+b", "a\tb", b"a", 3)),
        ({"options": ("stride",)}, "must be a tuple of mpicomp.schemes.options.Option"),
        ({"options": 5}, "must be a tuple of mpicomp.schemes.options.Option"),
    ],
)
def test_what_is_missing_is_said_and_nothing_is_registered(changed, message):
    before = dict(schemes.PARTS["selector"])
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        mpicomp.register_part("selector")(selector(**changed))
    assert schemes.PARTS["selector"] == before


@pytest.mark.parametrize(("changed", "message"), [
    ({"takes": "topk"}, "Mine: takes must be one of any, all, some, counted, agreed, got 'topk'"),
    ({"codecs": "adable"}, "Mine: codecs must be one of any, addable, float, got 'adable'"),
    ({"redistribution": (("kept", "add"),)}, "redistribution of kept must be one of same, anew, stay, got 'add'"),
])
def test_words_without_a_meaning_are_refused(changed, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        mpicomp.register_part("exchange")(exchange(**changed))
    assert "mine" not in schemes.PARTS["exchange"]


def test_a_part_with_a_state_is_taken_for_one():
    for state, declared, expected in ((None, {}, False), (lambda self, ops: {}, {}, True),
                                      (lambda self, ops: {}, {"stateful": False}, False)):
        verbs = {"state": state} if state else {}
        assert mpicomp.register_part("exchange")(exchange(**verbs, **declared)).stateful is expected
        del schemes.PARTS["exchange"]["mine"]


@pytest.mark.parametrize("declared", [{}, {"required_state": ("kept",)}])
def test_candidates_keep_no_state(declared):
    mpicomp.register_part("exchange")(exchange(state=lambda self, ops: {}, **declared))
    try:
        with pytest.raises(InvalidArgument, match="exchange mine has a state of its own"):
            mpicomp.Scheme.parse("auto:layers=per-tensor,candidates=dense+topk/exchange=mine").parts(1)
        mpicomp.Scheme.parse("auto:candidates=dense+onebit/second=no").parts(1)
    finally:
        del schemes.PARTS["exchange"]["mine"]


def test_an_unknown_kind_is_refused():
    for kind in ("transport", ["codec"]):
        with pytest.raises(InvalidArgument, match="kind must be one of memory, selector, codec, exchange, schedule"):
            mpicomp.register_part(kind)


@pytest.mark.parametrize("option", [Option("beta", float, 7.0, "a factor"), Option("dense", int, 1, "a number"),
                                    Option("beta", float, 0.5, "a factor", low=0, high=1)],
                         ids=str)
def test_an_option_that_means_something_else_in_another_part_is_refused(option):
    """It would be that part's, too: the residual memory's beta is at most 1."""
    mpicomp.register_part("selector")(selector(name="clashing", options=(option,)))
    try:
        with pytest.raises(InvalidArgument, match=f"option '{option.name}' of .* has another range"):
            mpicomp.Scheme.parse("topk:selector=clashing")
    finally:
        del schemes.PARTS["selector"]["clashing"]


@pytest.mark.parametrize(("declared", "message"), [
    (("flag", bool, False), "option flag: type must be int, float or str, got <class 'bool'>"),
    (("wire", np.dtype, None), "option wire: type must be int, float or str"),
    (("a,b", int, 1), "the name of an option must be one of a Python argument, got 'a,b'"),
    (("bits", int, 1, (1, 2)), "option bits: choices and words must be texts, of an option of type str, got 1, 2"),
    (("bits", int, 1, ("1", "2")), "option bits: choices and words must be texts, of an option of type str"),
    (("stride", int, 2.5), "stride must be a whole number"),
    (("stride", int, "3"), "option stride: the default must be a whole number or None, got '3'"),
    (("word", str, "c", ("a", "b")), "word must be one of a, b, got c"),
], ids=str)
def test_an_option_whose_values_cannot_be_written_is_refused(declared, message):
    """bool("no") is True."""
    name, kind, default, *choices = declared
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        Option(name, kind, default, "a meaning", choices=choices[0] if choices else ())


def test_a_default_has_the_range_of_its_option():
    with pytest.raises(InvalidArgument, match=re.escape("stride must be in [0, 5], got 9")):
        Option("stride", int, 9, "elements apart", low=0, high=5)
    with pytest.raises(InvalidArgument, match="stride must be at most 5, got 9"):
        Option("stride", int, 1, "elements apart", high=5).parse("9")


@pytest.mark.parametrize(("indices", "given"), [(np.arange(2), "int64"), (np.ones(4, bool), "bool"), ([0, 1], "list")])
def test_indices_of_another_dtype_are_refused_by_any_number_of_ranks(indices, given):
    """Several ranks would take them for a damaged message of another's."""
    mpicomp.register_part("selector")(selector(select=lambda *_: indices, expand=lambda _self, wire, _ctx: wire))
    reducer = mpicomp.Reducer(mpicomp.Comm(MPI.COMM_SELF), "topk:selector=mine")
    with pytest.raises(InvalidArgument, match=f"selector mine must give indices as an array of int32.* got {given}"):
        reducer.reduce(np.ones(4))


def test_what_is_no_class_and_no_composition_is_refused():
    with pytest.raises(InvalidArgument, match="register_part goes before a class, got"):
        mpicomp.register_part("selector")(selector()(3))
    for given in ("topk", mpicomp.Scheme.parse("topk")):
        with pytest.raises(InvalidArgument, match=r"register_scheme takes a .*Composition, got"):
            mpicomp.register_scheme(given)
    with pytest.raises(InvalidArgument, match="memory must be one of none, "):
        mpicomp.register_scheme(composition(memory=["residual"]))


@pytest.mark.parametrize("text", [None, 3, b"topk", ["topk"]])
def test_what_is_no_scheme_is_refused(text):
    with pytest.raises(InvalidArgument, match="a scheme is a text such as"):
        mpicomp.Scheme.parse(text)


@pytest.mark.parametrize("kind", schemes.PARTS)
def test_our_own_parts_would_pass(kind):
    """The registration demands no more of users' parts than ours have."""
    for part in list(schemes.PARTS[kind].values()):
        mpicomp.register_part(kind)(type(part.__name__, (part,), {"name": f"my-{part.name}"}))


def composition(**changed):
    things = {"name": "my-scheme", "memory": "residual", "selector": "mine", "codec": "float", "exchange": "gather",
              "reference": "-", "wire": "(p-1) k (v + i)", **changed}
    return schemes.Composition(**things)


def test_a_scheme_of_parts_has_a_row_and_defaults():
    mpicomp.register_part("selector")(selector())
    mpicomp.register_scheme(composition(defaults={"stride": 5}))
    assert mpicomp.Scheme.parse("my-scheme").options["stride"] == 5
    assert schemes.table()[-1]["name"] == "my-scheme"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "topk"}, "there is a scheme named 'topk' already"),
        ({"codec": "morse"}, "codec must be one of float, "),
        ({"exchange": "leader"}, "exchange leader takes as selector one that chooses some, got mine"),
        ({"defaults": {"stride": 0}}, "stride must be in [1, inf), got 0"),
        ({"defaults": {"strid": 5}}, "scheme my-scheme has no option 'strid'"),
        ({"with_memory": {"strid": 5}}, "scheme my-scheme has no option 'strid'"),
    ],
)
def test_a_scheme_that_cannot_be_is_refused(changed, message):
    mpicomp.register_part("selector")(selector())
    before = schemes.names()
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        mpicomp.register_scheme(composition(**changed))
    assert schemes.names() == before


def test_a_codec_made_from_one_of_ours_decodes_by_itself_in_every_exchange():
    """Our codecs write into a vector's pieces; exchanges call the codec's own decode if it defines one."""
    @mpicomp.register_part("codec")
    class Doubled(codecs.CODECS["sign"]):
        name = "doubled"

        def decode(self, codes, place, step):
            return 2 * super().decode(codes, place, step)

    comm, x = mpicomp.Comm(MPI.COMM_SELF), np.array([1.0, -3.0, 2.0, -2.0])
    for exchange, twice in (("gather", 1), ("pieces", 2)):  # pieces are quantised on the way back, too
        sign, doubled = (mpicomp.Reducer(comm, f"signsgd:codec={codec},memory=none,exchange={exchange}").reduce(x)
                         for codec in ("sign", "doubled"))
        np.testing.assert_array_equal(doubled, 2**twice * sign)
