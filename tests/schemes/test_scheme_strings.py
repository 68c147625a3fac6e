"""Scheme strings, options and the registry: parsed once, refused with the choices."""

import re

import pytest

from mpicomp import schemes
from mpicomp.errors import InvalidArgument
from mpicomp.schemes import Scheme


@pytest.mark.parametrize("text", ["dense", "scalecom:chunk=112,beta=0.1", "topk:density=0.01", "threshold:lam=0.5"])
def test_a_scheme_is_written_as_it_is_read(text):
    assert str(Scheme.parse(text)) == text
    assert Scheme.parse(str(Scheme.parse(text))) == Scheme.parse(text)
    assert Scheme.parse(Scheme.parse(text)) == Scheme.parse(text)


def test_options_have_the_declared_types_and_defaults():
    options = Scheme.parse(" scalecom : chunk = 64 , values=float16 ").options
    assert options["chunk"] == 64
    assert options["beta"] == 1.0
    assert options["values"] == "float16"
    assert options["layers"] == "whole"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "unknown scheme 'nonsense' (did you mean 'dense'?); the schemes are: dense, "),
        ("topk:density=1.5", "density must be in (0, 1], got 1.5"),
        ("topk:density=0", "density must be in (0, 1], got 0"),
        ("topk:density=nan", "density must be in (0, 1], got nan"),
        ("topk:k=2.5", "k must be a whole number in [1, inf), got '2.5'"),
        ("topk:k=0", "k must be in [1, inf), got 0"),
        ("topk:k=9223372036854775808", "k must be below 2^63, got 9223372036854775808"),
        ("qsgd:seed=18446744073709551616", "seed must be below 2^63"),
        ("terngrad:sigmas=inf", "sigmas must be in [0, inf), got inf"),
        ("scalecom:chunk=0", "chunk must be in [1, 65536], got 0"),
        ("scalecom:beta=0", "beta must be in (0, 1], got 0"),
        ("scalecom:speed=3", "no option 'speed' (did you mean 'seed'?); its options are: beta, chunk, codec, dense, "
                             "exchange, layers"),
        ("scalecom:chunk", "options are written name=value, got 'chunk'"),
        ("scalecom:chunk=", "options are written name=value, got 'chunk='"),
        ("scalecom:chunk=2,chunk=3", "option 'chunk' is given twice"),
        ("scalecom:values=int8", "values must be one of same, float16, bfloat16, float32, float64, got int8"),
        ("topk:memory=elephant", "memory must be one of none, residual, "),
    ],
)
def test_bad_schemes_say_what_was_expected(text, message):
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        Scheme.parse(text)


@pytest.mark.parametrize("k", [2.5, float("inf"), float("nan")])
def test_a_count_is_not_cut_to_a_whole_number(k):
    with pytest.raises(InvalidArgument, match="k must be a whole number"):
        Scheme("topk", {"k": k})
    assert Scheme("topk", {"k": 2.0}) == Scheme.parse("topk:k=2")


def test_another_memory_brings_its_own_options():
    assert "beta" not in Scheme.parse("topk:memory=none").options
    with pytest.raises(InvalidArgument, match="no option 'beta'"):
        Scheme.parse("topk:memory=none,beta=0.5")


def test_replace_keeps_what_was_given():
    assert str(Scheme.parse("topk:k=3").replace(values="float32")) == "topk:k=3,values=float32"


def test_the_table_describes_every_scheme():
    rows = {row["name"]: row for row in schemes.table()}
    assert list(rows) == schemes.names()
    for row in rows.values():
        assert row["reference"] and row["wire"]
        assert {"name", "default", "range", "meaning"} == set(row["options"][0])
    assert rows["scalecom"]["exchange"] == "leader"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("qsgd:memory=residual", "codec levels may have 3.23 times .* memory residual lets it grow: take more levels"),
        ("topk:codec=levels", "memory residual lets it grow"),
        ("dgc:codec=levels", "memory momentum-corrected"),
        ("qsgd:memory=residual,levels=22", "memory residual"),
        ("qsgd:memory=residual,levels=1,norm=max", "norm=max with levels=2 or more"),
        ("terngrad:memory=residual,sigmas=0", "codec ternary .* take sigmas of 2 or less, or memory=none"),
        ("induced:memory=shifted", "codec induced .* memory shifted"),
        ("onebit:codec=levels,memory=none", "second memory of pieces .* second=no"),
        ("arctopk:row=4", "row=4 is no more than width=4, so that more is sent than without compression: take row"),
    ],
)
def test_questionable_options_have_a_warning(text, said):
    (warning,) = Scheme.parse(text).warning_texts()
    assert re.search(said, warning), warning


@pytest.mark.parametrize("text", [
    *schemes.names(), "qsgd:memory=residual,levels=23", "qsgd:memory=residual,norm=max",
    "qsgd:memory=residual,beta=0.1", "terngrad:memory=residual,sigmas=2",
    "onebit:codec=levels,memory=none,second=no", "natural:memory=residual",
    "topk:codec=sign", "arctopk:row=5", "arctopk:row=2,width=1",
])  # fmt: skip
def test_others_have_no_warning(text):
    assert Scheme.parse(text).warning_texts() == []


def test_schemes_are_equal_however_their_numbers_are_written():
    one, other = Scheme.parse("topk:density=0.010,seed=6_1"), Scheme.parse("topk:seed=61,density=1e-2")
    assert one == other and hash(one) == hash(other) and one != Scheme.parse("topk:seed=61")
