"""Schedules of densities, without MPI."""

from types import SimpleNamespace

import numpy as np
import pytest

from mpicomp.errors import InvalidArgument
from mpicomp.ops import oracle
from mpicomp.schemes.schedules import SCHEDULES, Accordion, WarmUp, densities_by_flops
from mpicomp.schemes.values import Mean

SPANS = [(0, 3), (3, 3), (3, 8)]


def step_of(number, spans=SPANS):
    def add_at(total, indices, values):
        total[slice(None) if indices is None else indices] += values

    return SimpleNamespace(number=number, ops=oracle, n=spans[-1][1], dtype=np.float32, spans=spans, add_at=add_at)


def feed(schedule, number, *sizes):
    """One step in which span s has a mean of norm sizes[s]."""
    values = np.zeros(8, np.float32)
    values[0], values[5] = sizes
    schedule.observe(Mean(None, values, 8), step_of(number))


def densities(schedule, number=0):
    return [schedule.density(0.01, span, number) for span in range(len(SPANS))]


def test_warm_up_has_the_published_sparsities():
    schedule = WarmUp(warmup=40, warmup_density=0.25, stages=4)
    found = [100 * (1 - schedule.density(0.001, 0, number)) for number in (0, 9, 10, 20, 30, 39, 40, 1000)]
    np.testing.assert_allclose(found, [75, 75, 93.75, 98.4375, 99.6, 99.6, 99.9, 99.9], atol=0.051)
    assert schedule.density(0.5, 0, 0) == 0.5  # never below what is wanted in the end


def test_accordion_is_critical_until_two_intervals_can_be_compared():
    schedule = Accordion(high=0.1, interval=2, change=0.5)
    for number in range(3):
        assert densities(schedule) == [0.1, 0.1, 0.1]
        feed(schedule, number, 1, 1)
    feed(schedule, 3, 1, 1)
    assert densities(schedule) == [0.01, 0.01, 0.01]


@pytest.mark.parametrize(("size", "critical"), [(1, False), (1.4, False), (0.6, False), (1.5, True), (0.5, True)])
def test_accordion_compares_the_norms_of_intervals(size, critical):
    schedule = Accordion(high=0.1, interval=1, change=0.5)
    for number in range(2):
        feed(schedule, number, 4, 4)
    feed(schedule, 2, 4, 4 * size)
    assert densities(schedule) == [0.01, 0.01, 0.1 if critical else 0.01]


def test_accordion_adds_the_means_of_an_interval_before_it_takes_the_norm():
    schedule = Accordion(high=0.1, interval=2, change=0.5)
    sizes = [(1, 1), (1, 1), (1, 1), (1, 1), (1, 3), (1, -1), (1, 3), (1, -3)]  # sums 2, 2, 2 and 0 in the last span
    for number, pair in enumerate(sizes):
        feed(schedule, number, *pair)
        assert densities(schedule)[2] == (0.1 if number < 3 or number == 7 else 0.01)


def test_accordion_never_lowers_the_schemes_own_density():
    assert Accordion(high=0.1, interval=2, change=0.5).density(0.3, 0, 0) == 0.3


def test_a_lower_learning_rate_is_critical_to_the_end_of_the_next_interval():
    schedule = Accordion(high=0.1, interval=2, change=0.5)
    for number in range(5):
        feed(schedule, number, 1, 1)
    assert densities(schedule) == [0.01] * 3
    schedule.learning_rate_dropped()
    for number in (5, 6):
        assert densities(schedule) == [0.1] * 3
        feed(schedule, number, 1, 1)
    assert densities(schedule) == [0.1] * 3
    feed(schedule, 7, 1, 1)
    assert densities(schedule) == [0.01] * 3
    for schedule in SCHEDULES.values():
        assert hasattr(schedule, "learning_rate_dropped")


def test_accordion_decides_late_where_the_last_step_of_an_interval_was_skipped():
    schedule = Accordion(high=0.1, interval=3, change=0.5)
    for number in (0, 1, 2, 3, 4):
        feed(schedule, number, 1, 1)
    assert densities(schedule) == [0.1] * 3
    feed(schedule, 6, 1, 1)  # step 5 was skipped
    assert densities(schedule) == [0.01] * 3
    feed(schedule, 7, 1, 9)
    assert densities(schedule) == [0.01] * 3
    feed(schedule, 8, 1, 9)  # and the next decision falls due when it would have
    assert densities(schedule)[2] == 0.1


@pytest.mark.parametrize("stop", range(9))
def test_accordion_goes_on_from_its_state(stop):
    straight, first = (Accordion(high=0.1, interval=3, change=0.3) for _ in range(2))
    sizes = np.random.default_rng(3).uniform(0, 2, (20, 2))
    for number in range(stop):
        feed(straight, number, *sizes[number])
        feed(first, number, *sizes[number])
    if stop == 7:
        straight.learning_rate_dropped()
        first.learning_rate_dropped()
    second = Accordion(high=0.1, interval=3, change=0.3)
    second.load(first.state(oracle))
    third = Accordion(high=0.1, interval=3, change=0.3)
    third.load(second.state(None))  # before the device is known
    for number in range(stop, 20):
        assert densities(straight) == densities(second) == densities(third)
        for schedule in (straight, second, third):
            feed(schedule, number, *sizes[number])


def test_densities_by_flops():
    flops = {"conv": 1000, "edge": 196, "mid": 195.9, "least": 128, "fc": 127, "none": 0}
    found = densities_by_flops(flops)
    assert found == {"conv": 1 / 25, "edge": 1 / 25, "mid": 1 / 50, "least": 1 / 50, "fc": 1 / 400, "none": 1 / 400}
    assert densities_by_flops({"a": 3, "b": 1}, ((2, 1), (0, 10))) == {"a": 1, "b": 0.1}
    assert densities_by_flops({}) == {}


@pytest.mark.parametrize(
    ("flops", "rates", "message"),
    [
        ({"a": 1}, ((0, 25), (128, 50)), "bounds of rates must descend to 0"),
        ({"a": 1}, ((128, 25),), "bounds of rates must descend to 0"),
        ({"a": 1}, (), "bounds of rates must descend to 0"),
        ({"a": 1}, ((0, 0.5),), "compression rates must be at least 1"),
        ({"a": -1}, ((0, 2),), "FLOPs per gradient element must be at least 0"),
        ({"a": float("nan")}, ((0, 2),), "FLOPs per gradient element must be at least 0"),
    ],
)
def test_bad_rates_are_refused(flops, rates, message):
    with pytest.raises(InvalidArgument, match=message):
        densities_by_flops(flops, rates)
