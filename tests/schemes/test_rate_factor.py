"""The learning rate that a scheme proposes for Adam, and warnings about schemes that lose under it."""

import pytest

from mpicomp import Scheme, schemes


@pytest.mark.parametrize(("text", "factor"), [
    ("dense", 1), ("powersgd", 1), ("int8", 1), ("onebit", 1), ("topk:density=0.25", 2), ("topk:density=1", 1),
    ("topk:density=0.1", 3), ("topk:density=0.001", 3), ("topk:k=10", 3), ("scalecom:chunk=4", 2),
    ("randomk:density=0.25", 2), ("threshold:density=0.25", 2), ("threshold:lam=0.1", 1), ("adacomp", 1),
    ("topk:memory=none,density=0.25", 2), ("topk:memory=ef21", 1), ("topk:memory=adam-update", 1), ("dgc", 1),
    ("error-reset", 1),
])  # fmt: skip
def test_the_factor_is_the_inverse_root_of_the_density_up_to_a_limit(text, factor):
    assert Scheme.parse(text).rate_factor == pytest.approx(factor)


def test_a_warning_says_what_to_take_instead():
    for name in schemes.names():
        scheme = Scheme.parse(name)
        said = scheme.adam_warning_texts()
        assert bool(said) == (scheme.rate_factor > 1)
        assert all("memory=adam-update" in text or "layers=per-tensor" in text for text in said)
    assert len(Scheme.parse("topk-global").adam_warning_texts()) == 2
    assert len(Scheme.parse("topk").adam_warning_texts()) == len(Scheme.parse("scalecom").adam_warning_texts()) == 1


@pytest.mark.parametrize("name", schemes.names())
def test_advice_is_itself_without_warning(name):
    scheme = Scheme.parse(name)
    if scheme.adam_warning_texts() and scheme.part_names["memory"] == "residual":
        assert not scheme.replace(memory="adam-update").adam_warning_texts()
