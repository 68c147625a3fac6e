"""Settings of the common training loop."""

import pytest

from mpicomp.apps import loop_settings
from mpicomp.apps.loop_settings import LoopSettings
from mpicomp.errors import InvalidArgument


def test_the_rate_factor_is_applied_on_request_only():
    settings = LoopSettings("topk:density=0.25", optimizer="adam", lr=0.01)
    assert settings.rate == 0.01
    assert LoopSettings("topk:density=0.25", optimizer="adam", lr=0.01, rate_factor=True).rate == pytest.approx(0.02)
    assert LoopSettings("dense", optimizer="lamb", lr=0.01, rate_factor=True).rate == 0.01


@pytest.mark.parametrize("optimizer", [None, "sgd:momentum=0.9", "lars"])
def test_the_rate_factor_is_for_adam(optimizer):
    with pytest.raises(InvalidArgument, match="rate_factor is for gradients averaged under adam or lamb, got"):
        LoopSettings(optimizer=optimizer, rate_factor=True).check(ranks=1, rows=1000)


@pytest.mark.parametrize(("given", "scheme"), [
    ({"optimizer": "adam"}, "topk"), ({"optimizer": "sgd"}, None), ({}, None),
    ({"optimizer": "adam", "outer": "diloco"}, None),
    ({"optimizer": "adam", "outer": "diloco", "outer_warmup": 2.0, "outer_warmup_scheme": "scalecom"}, "scalecom"),
    ({"optimizer": "sgd", "outer": "diloco", "outer_warmup": 2.0, "outer_warmup_scheme": "scalecom"}, None),
])  # fmt: skip
def test_the_scheme_that_is_judged_under_adam(given, scheme):
    assert LoopSettings("topk", **given).scheme_under_adam == scheme


@pytest.mark.parametrize("name", loop_settings.COMMUNICATING)
@pytest.mark.parametrize("given", [{"outer": "diloco"}, {"compress_warmup": 1.0}])
def test_optimizers_that_average_by_themselves_take_no_other_averaging(name, given):
    (setting, value), = given.items()
    with pytest.raises(InvalidArgument, match=f"{name}:warmup=9 averages .* with {setting}={value}: leave that out"):
        LoopSettings(optimizer=f"{name}:warmup=9", **given).check(ranks=1, rows=1000)
    LoopSettings(optimizer=f"{name}:warmup=9", scheme="int8").check(ranks=1, rows=1000)


@pytest.mark.parametrize(("given", "text"), [
    ({"every": 7, "merge": 0.5}, r"outer=diloco must be given with every=7, merge=0\.5, got none"),
    ({"outer_warmup": 1.0}, r"outer=diloco must be given with outer_warmup=1\.0, got none"),
    ({"outer": "diloco", "outer_warmup_scheme": "int8"},
     "outer_warmup must be given with outer_warmup_scheme=int8, got none"),
])  # fmt: skip
def test_settings_of_outer_steps_are_refused_where_there_are_none(given, text):
    with pytest.raises(InvalidArgument, match=text):
        LoopSettings(**given).check(ranks=1, rows=1000)
    LoopSettings(**{"outer": "diloco", "outer_warmup": 1.0, **given}).check(ranks=1, rows=1000)
